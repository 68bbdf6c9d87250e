#include "proto/wire/local_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

constexpr int kBacklog = 64;

absl::Status Failed(absl::string_view what, int error) {
  return absl::UnavailableError(absl::StrCat("local socket: ", what, ": ", std::strerror(error)));
}

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("local socket: '", path, "' must have 1 to ",
                                                   sizeof(address.sun_path) - 1, " bytes"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

int NewSocket() { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0); }

// Room for one descriptor beside a message.
union Control {
  cmsghdr head;
  std::array<char, CMSG_SPACE(sizeof(int))> bytes;
};

// The descriptor that came with a message, or -1.
int DescriptorIn(msghdr& message) {
  const cmsghdr* const head = CMSG_FIRSTHDR(&message);
  if (head == nullptr || head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS ||
      head->cmsg_len != CMSG_LEN(sizeof(int))) {
    return -1;
  }
  int descriptor;
  std::memcpy(&descriptor, CMSG_DATA(head), sizeof(int));
  return descriptor;
}

}  // namespace

absl::StatusOr<LocalSocket> LocalSocket::Connect(const std::string& path) {
  KVSTOW_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  LocalSocket out(NewSocket());
  if (out.descriptor_ < 0) return Failed("socket", errno);
  // A full backlog would make it wait.
  const timeval soon{.tv_sec = 1};
  setsockopt(out.descriptor_, SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof(soon));
  if (connect(out.descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return Failed(path, errno);
  }
  return out;
}

absl::StatusOr<LocalSocket> LocalSocket::Listen(const std::string& path) {
  KVSTOW_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  struct stat facts {};
  if (lstat(path.c_str(), &facts) == 0 && S_ISSOCK(facts.st_mode)) {
    if (Connect(path).ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("another server listens on ", path, ": stop it or give another path"));
    }
    unlink(path.c_str());
  }
  LocalSocket out(NewSocket());
  if (out.descriptor_ < 0) return Failed("socket", errno);
  // The mode is the socket's from the moment that it is there.
  fchmod(out.descriptor_, S_IRUSR | S_IWUSR);
  if (bind(out.descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0 || listen(out.descriptor_, kBacklog) != 0) {
    return Failed(path, errno);
  }
  return out;
}

absl::StatusOr<std::pair<LocalSocket, LocalSocket>> LocalSocket::Pair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return Failed("socketpair", errno);
  }
  return std::pair(LocalSocket(ends[0]), LocalSocket(ends[1]));
}

LocalSocket::~LocalSocket() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::StatusOr<LocalSocket> LocalSocket::Accept() const {
  const int descriptor = accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC);
  if (descriptor < 0) return Failed("accept", errno);
  return LocalSocket(descriptor);
}

absl::StatusOr<PeerCredentials> LocalSocket::Peer() const {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  if (getsockopt(descriptor_, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
    return Failed("the peer's credentials", errno);
  }
  return PeerCredentials{.pid = peer.pid, .uid = peer.uid};
}

absl::Status LocalSocket::Send(const google::protobuf::MessageLite& message, int descriptor) const {
  std::string bytes = message.SerializeAsString();
  if (bytes.size() > kMaxLocalMessageBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a message of ", bytes.size(), " bytes does not fit into ", kMaxLocalMessageBytes));
  }
  iovec part{.iov_base = bytes.data(), .iov_len = bytes.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  Control control{};
  if (descriptor >= 0) {
    header.msg_control = control.bytes.data();
    header.msg_controllen = control.bytes.size();
    cmsghdr* const head = CMSG_FIRSTHDR(&header);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(head), &descriptor, sizeof(int));
  }
  if (sendmsg(descriptor_, &header, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno == EAGAIN) return absl::ResourceExhaustedError("local socket: no room to send");
    return Failed("send", errno);
  }
  return absl::OkStatus();
}

absl::Status LocalSocket::Receive(google::protobuf::MessageLite& message,
                                  std::optional<Duration> timeout, int* descriptor) const {
  if (timeout.has_value()) {
    pollfd waits{.fd = descriptor_, .events = POLLIN};
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(*timeout).count();
    const int ready = poll(&waits, 1, static_cast<int>(std::clamp<int64_t>(ms, 0, 1 << 30)));
    if (ready < 0 && errno != EINTR) return Failed("poll", errno);
    if (ready <= 0) return absl::DeadlineExceededError("local socket: nothing came in time");
  }
  thread_local std::string buffer;
  buffer.resize(kMaxLocalMessageBytes);
  iovec part{.iov_base = buffer.data(), .iov_len = buffer.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  Control control{};
  if (descriptor != nullptr) {  // without room for it, the kernel drops what comes
    header.msg_control = control.bytes.data();
    header.msg_controllen = control.bytes.size();
    *descriptor = -1;
  }
  ssize_t bytes;
  do {
    bytes = recvmsg(descriptor_, &header, MSG_CMSG_CLOEXEC);
  } while (bytes < 0 && errno == EINTR);
  if (bytes < 0) return Failed("receive", errno);
  if (descriptor != nullptr) *descriptor = DescriptorIn(header);
  if (bytes == 0) return absl::UnavailableError("local socket: the peer hung up");
  if ((header.msg_flags & MSG_TRUNC) != 0 ||
      !message.ParseFromArray(buffer.data(), static_cast<int>(bytes))) {
    return absl::InvalidArgumentError("local socket: a message that cannot be read");
  }
  return absl::OkStatus();
}

void LocalSocket::HangUp() const { shutdown(descriptor_, SHUT_RDWR); }

}  // namespace kvstow
