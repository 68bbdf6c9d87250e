#include "proto/wire/direct_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "proto/wire/tcp.h"
#include "proto/wire/tls_session.h"

namespace kvstow {
namespace {

constexpr uint32_t kMagic = 0x3144564b;  // "KVD1"
constexpr int kBacklog = 64;
constexpr size_t kMaxParts = 64;  // of one call of the kernel's

struct Head {
  uint32_t magic = kMagic;
  uint32_t message_bytes = 0;
  uint64_t payload_bytes = 0;
};
static_assert(sizeof(Head) == 16);

absl::Status Failed(absl::string_view what, int error) {
  return absl::UnavailableError(
      absl::StrCat("direct connection: ", what, ": ", std::strerror(error)));
}

// Until the socket can be read (or written), or is broken, which the next call tells.
absl::Status WaitFor(int descriptor, int16_t events, Time deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::Real().Now()).count();
    if (left <= 0) return absl::DeadlineExceededError("direct connection: the peer is too slow");
    pollfd waits{.fd = descriptor, .events = events, .revents = 0};
    const int ready = poll(&waits, 1, static_cast<int>(std::min<int64_t>(left, 1 << 30)));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return Failed("poll", errno);
  }
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

absl::StatusOr<Addresses> Resolve(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &list);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("direct connection: ", host, ": ", gai_strerror(error)));
  }
  return Addresses(list);
}

bool IsLoopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    sockaddr_in in;
    std::memcpy(&in, &address, sizeof(in));
    return ntohl(in.sin_addr.s_addr) >> 24 == 127;
  }
  sockaddr_in6 in6;
  std::memcpy(&in6, &address, sizeof(in6));
  return address.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr) != 0;
}

// Within a host there is no congestion to control: BBR would pace what has no bottleneck.
void Tune(int descriptor) {
  TuneTcp(descriptor);
  sockaddr_storage peer{};
  socklen_t bytes = sizeof(peer);
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &bytes) == 0 &&
      IsLoopback(peer)) {
    constexpr absl::string_view kReno = "reno";
    setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, kReno.data(), kReno.size());
  }
}

// Takes what the kernel took off the front of a message's parts.
void Advance(msghdr& message, size_t bytes) {
  while (message.msg_iovlen > 0 && bytes >= message.msg_iov->iov_len) {
    bytes -= message.msg_iov->iov_len;
    ++message.msg_iov;
    --message.msg_iovlen;
  }
  if (message.msg_iovlen == 0) return;
  message.msg_iov->iov_base = static_cast<uint8_t*>(message.msg_iov->iov_base) + bytes;
  message.msg_iov->iov_len -= bytes;
}

absl::Status SendAll(int descriptor, msghdr& message, Time deadline) {
  while (message.msg_iovlen > 0) {
    msghdr some = message;
    some.msg_iovlen = std::min(message.msg_iovlen, kMaxParts);
    const ssize_t sent = sendmsg(descriptor, &some, MSG_NOSIGNAL);
    if (sent >= 0) {
      Advance(message, static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      KVSTOW_RETURN_IF_ERROR(WaitFor(descriptor, POLLOUT, deadline));
    } else if (errno != EINTR) {
      return Failed("send", errno);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DirectSocket> DirectSocket::Connect(const std::string& host, int port,
                                                   Time deadline) {
  KVSTOW_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(host, port, 0));
  absl::Status last = absl::UnavailableError("direct connection: no address");
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    DirectSocket out(
        socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol));
    if (out.descriptor_ < 0) return Failed("socket", errno);
    if (connect(out.descriptor_, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS) {
      last = Failed(absl::StrCat(host, ":", port), errno);
      continue;
    }
    KVSTOW_RETURN_IF_ERROR(WaitFor(out.descriptor_, POLLOUT, deadline));
    int error = 0;
    socklen_t bytes = sizeof(error);
    getsockopt(out.descriptor_, SOL_SOCKET, SO_ERROR, &error, &bytes);
    last = Failed(absl::StrCat(host, ":", port), error);
    if (error != 0) continue;
    Tune(out.descriptor_);
    return out;
  }
  return last;
}

absl::StatusOr<DirectSocket> DirectSocket::Listen(const std::string& host, int port) {
  KVSTOW_ASSIGN_OR_RETURN(const Addresses a, Resolve(host, port, AI_PASSIVE));
  DirectSocket out(socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, a->ai_protocol));
  if (out.descriptor_ < 0) return Failed("socket", errno);
  const int on = 1;
  setsockopt(out.descriptor_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(out.descriptor_, a->ai_addr, a->ai_addrlen) != 0 ||
      listen(out.descriptor_, kBacklog) != 0) {
    return Failed(absl::StrCat(host, ":", port), errno);
  }
  return out;
}

absl::StatusOr<std::pair<DirectSocket, DirectSocket>> DirectSocket::Pair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return Failed("socketpair", errno);
  }
  return std::pair(DirectSocket(ends[0]), DirectSocket(ends[1]));
}

DirectSocket::DirectSocket(int descriptor) : descriptor_(descriptor) {}

DirectSocket::DirectSocket(DirectSocket&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), tls_(std::move(other.tls_)) {}

DirectSocket& DirectSocket::operator=(DirectSocket&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(tls_, other.tls_);
  return *this;
}

DirectSocket::~DirectSocket() {
  if (descriptor_ >= 0) close(descriptor_);
}

int DirectSocket::port() const {
  sockaddr_storage address{};
  socklen_t bytes = sizeof(address);
  if (getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return 0;
  // The port stands at the same place for IPv4 and IPv6.
  sockaddr_in in;
  std::memcpy(&in, &address, sizeof(in));
  return ntohs(in.sin_port);
}

absl::StatusOr<DirectSocket> DirectSocket::Accept() const {
  const int descriptor = accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (descriptor < 0) return Failed("accept", errno);
  Tune(descriptor);
  return DirectSocket(descriptor);
}

absl::Status DirectSocket::StartTls(TlsContext& tls, Time deadline, absl::string_view protocol) {
  auto session = std::make_unique<TlsSession>(tls, descriptor_);
  if (!protocol.empty()) session->Offer(protocol);
  for (;;) {
    KVSTOW_ASSIGN_OR_RETURN(const TlsSession::Step step, session->Handshake());
    if (step.wait_for == 0) break;
    KVSTOW_RETURN_IF_ERROR(WaitFor(descriptor_, step.wait_for, deadline));
  }
  tls_ = std::move(session);
  return absl::OkStatus();
}

std::vector<std::string> DirectSocket::peer_names() const {
  return tls_ == nullptr ? std::vector<std::string>() : tls_->peer_names();
}

absl::Status DirectSocket::SendTls(std::span<const uint8_t> bytes, Time deadline) const {
  while (!bytes.empty()) {
    KVSTOW_ASSIGN_OR_RETURN(const TlsSession::Step step, tls_->Write(bytes));
    if (step.wait_for != 0) KVSTOW_RETURN_IF_ERROR(WaitFor(descriptor_, step.wait_for, deadline));
    bytes = bytes.subspan(step.bytes);
  }
  return absl::OkStatus();
}

absl::Status DirectSocket::FlushTls(Time deadline) const {
  for (;;) {
    KVSTOW_ASSIGN_OR_RETURN(const TlsSession::Step step, tls_->Flush());
    if (step.wait_for == 0) return absl::OkStatus();
    KVSTOW_RETURN_IF_ERROR(WaitFor(descriptor_, step.wait_for, deadline));
  }
}

absl::Status DirectSocket::Send(const google::protobuf::MessageLite& message,
                                std::span<const SharedBytes> payload, uint64_t more,
                                Time deadline) const {
  std::string bytes = message.SerializeAsString();
  if (bytes.size() > kMaxDirectMessageBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a message of ", bytes.size(), " bytes does not fit into ", kMaxDirectMessageBytes));
  }
  Head head{.message_bytes = static_cast<uint32_t>(bytes.size()), .payload_bytes = more};
  if (tls_ != nullptr) {
    for (const SharedBytes& part : payload) head.payload_bytes += part.size();
    bytes.insert(0, reinterpret_cast<const char*>(&head), sizeof(head));
    KVSTOW_RETURN_IF_ERROR(SendTls(AsBytes(bytes), deadline));
    for (const SharedBytes& part : payload) {
      KVSTOW_RETURN_IF_ERROR(SendTls(part.span(), deadline));
    }
    return FlushTls(deadline);
  }
  std::vector<iovec> parts = {{&head, sizeof(head)}, {bytes.data(), bytes.size()}};
  for (const SharedBytes& part : payload) {
    head.payload_bytes += part.size();
    parts.push_back({const_cast<uint8_t*>(part.data()), part.size()});
  }
  msghdr all{};
  all.msg_iov = parts.data();
  all.msg_iovlen = parts.size();
  return SendAll(descriptor_, all, deadline);
}

absl::Status DirectSocket::SendBytes(std::span<const uint8_t> bytes, Time deadline) const {
  if (tls_ != nullptr) {
    KVSTOW_RETURN_IF_ERROR(SendTls(bytes, deadline));
    return FlushTls(deadline);
  }
  iovec part{const_cast<uint8_t*>(bytes.data()), bytes.size()};
  msghdr all{};
  all.msg_iov = &part;
  all.msg_iovlen = 1;
  return SendAll(descriptor_, all, deadline);
}

absl::Status DirectSocket::SendBytes(std::span<const SharedBytes> parts, Time deadline) const {
  if (tls_ != nullptr) {
    for (const SharedBytes& part : parts) KVSTOW_RETURN_IF_ERROR(SendTls(part.span(), deadline));
    return FlushTls(deadline);
  }
  std::vector<iovec> all_parts;
  for (const SharedBytes& part : parts) {
    all_parts.push_back({const_cast<uint8_t*>(part.data()), part.size()});
  }
  msghdr all{};
  all.msg_iov = all_parts.data();
  all.msg_iovlen = all_parts.size();
  return SendAll(descriptor_, all, deadline);
}

absl::Status DirectSocket::WaitForFrame(Time deadline) const {
  if (tls_ != nullptr && tls_->pending()) return absl::OkStatus();
  return WaitFor(descriptor_, POLLIN, deadline);
}

absl::Status DirectSocket::ReceiveFrame(google::protobuf::MessageLite& message,
                                        uint64_t& payload_bytes, Time deadline) const {
  Head head;
  KVSTOW_RETURN_IF_ERROR(Receive({reinterpret_cast<uint8_t*>(&head), sizeof(head)}, deadline));
  if (head.magic != kMagic || head.message_bytes > kMaxDirectMessageBytes) {
    return absl::InvalidArgumentError(
        "direct connection: what came is no frame: is it another protocol?");
  }
  std::string bytes(head.message_bytes, '\0');
  KVSTOW_RETURN_IF_ERROR(
      Receive({reinterpret_cast<uint8_t*>(bytes.data()), bytes.size()}, deadline));
  if (!message.ParseFromString(bytes)) {
    return absl::InvalidArgumentError("direct connection: a message that cannot be read");
  }
  payload_bytes = head.payload_bytes;
  return absl::OkStatus();
}

absl::Status DirectSocket::Receive(std::span<uint8_t> bytes, Time deadline) const {
  while (tls_ != nullptr && !bytes.empty()) {
    KVSTOW_ASSIGN_OR_RETURN(const TlsSession::Step step, tls_->Read(bytes));
    if (step.wait_for != 0) KVSTOW_RETURN_IF_ERROR(WaitFor(descriptor_, step.wait_for, deadline));
    bytes = bytes.subspan(step.bytes);
  }
  while (!bytes.empty()) {
    const ssize_t came = recv(descriptor_, bytes.data(), bytes.size(), 0);
    if (came > 0) {
      bytes = bytes.subspan(static_cast<size_t>(came));
    } else if (came == 0) {
      return absl::UnavailableError("direct connection: the peer hung up");
    } else if (errno == EAGAIN) {
      KVSTOW_RETURN_IF_ERROR(WaitFor(descriptor_, POLLIN, deadline));
    } else if (errno != EINTR) {
      return Failed("receive", errno);
    }
  }
  return absl::OkStatus();
}

absl::Status DirectSocket::Skip(uint64_t bytes, Time deadline) const {
  std::vector<uint8_t> scratch(std::min<uint64_t>(bytes, kDirectPieceBytes));
  while (bytes > 0) {
    const size_t n = std::min<uint64_t>(bytes, scratch.size());
    KVSTOW_RETURN_IF_ERROR(Receive({scratch.data(), n}, deadline));
    bytes -= n;
  }
  return absl::OkStatus();
}

bool DirectSocket::Quiet() const {
  uint8_t byte = 0;
  if (tls_ != nullptr && tls_->pending()) return false;
  return recv(descriptor_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

void DirectSocket::HangUp() const { shutdown(descriptor_, SHUT_RDWR); }

}  // namespace kvstow
