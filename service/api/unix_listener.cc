#include "service/api/unix_listener.h"

#include <fcntl.h>
#include <grpcpp/server_posix.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace kvstow {
namespace {

absl::Status Failed(const std::string& path, const char* what) {
  return absl::UnavailableError(absl::StrCat("unix:", path, ": ", what, ": ", strerror(errno)));
}

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un out{};
  out.sun_family = AF_UNIX;
  std::strncpy(out.sun_path, path.c_str(), sizeof(out.sun_path) - 1);
  return out;
}

bool SomebodyListens(const sockaddr_un& address) {
  const int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const bool there =
      connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
      errno == EAGAIN;
  close(descriptor);
  return there;
}

}  // namespace

void PeerUsers::Note(int descriptor, uid_t user) {
  MutexLock lock(mu_);
  users_[descriptor] = user;
}

std::optional<uid_t> PeerUsers::Find(absl::string_view peer) const {
  int descriptor = -1;
  if (!absl::ConsumePrefix(&peer, "fd:") || !absl::SimpleAtoi(peer, &descriptor)) {
    return std::nullopt;
  }
  MutexLock lock(mu_);
  const auto it = users_.find(descriptor);
  return it == users_.end() ? std::nullopt : std::optional(it->second);
}

absl::StatusOr<std::unique_ptr<UnixListener>> UnixListener::Start(const std::string& path,
                                                                  grpc::Server& server,
                                                                  PeerUsers& users) {
  const sockaddr_un address = AddressOf(path);
  if (SomebodyListens(address)) {
    return absl::UnavailableError(absl::StrCat("unix:", path, ": another server listens there"));
  }
  struct stat there {};
  if (lstat(path.c_str(), &there) == 0 && S_ISSOCK(there.st_mode)) unlink(path.c_str());
  const int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return Failed(path, "socket");
  if (bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(path.c_str(), 0666) != 0 || listen(descriptor, SOMAXCONN) != 0) {
    const absl::Status failed = Failed(path, "it cannot be bound");
    close(descriptor);
    return failed;
  }
  return std::unique_ptr<UnixListener>(new UnixListener(path, descriptor, server, users));
}

UnixListener::UnixListener(std::string path, int descriptor, grpc::Server& server, PeerUsers& users)
    : path_(std::move(path)),
      descriptor_(descriptor),
      server_(server),
      users_(users),
      accepting_([this] { AcceptAll(); }) {}

UnixListener::~UnixListener() {
  shutdown(descriptor_, SHUT_RDWR);  // ends accept
  accepting_.join();
  close(descriptor_);
  unlink(path_.c_str());
}

void UnixListener::AcceptAll() {
  for (;;) {
    const int accepted = accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (accepted < 0) {
      if (errno == EINVAL || errno == EBADF) return;               // shut down
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // for want of descriptors
      continue;
    }
    ucred peer{};
    socklen_t bytes = sizeof(peer);
    if (getsockopt(accepted, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
      close(accepted);
      continue;
    }
    users_.Note(accepted, peer.uid);
    grpc::AddInsecureChannelFromFd(&server_, accepted);
  }
}

}  // namespace kvstow
