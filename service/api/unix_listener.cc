#include "service/api/unix_listener.h"

#include <fcntl.h>
#include <grpcpp/server_posix.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/log.h"

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

// Returns the number of a descriptor's socket; 0 = it is closed.
ino_t SocketOf(int descriptor) {
  struct stat there {};
  return fstat(descriptor, &there) == 0 && S_ISSOCK(there.st_mode) ? there.st_ino : 0;
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

size_t MostConnectionsOfUser() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
  return std::max<size_t>(1, limit.rlim_cur / 4);
}

void PeerUsers::Note(int descriptor, uid_t user) {
  MutexLock lock(mu_);
  peers_[descriptor] = {user, SocketOf(descriptor)};
}

size_t PeerUsers::Count(uid_t user) const {
  return static_cast<size_t>(
      std::ranges::count_if(peers_, [&](const auto& entry) { return entry.second.user == user; }));
}

// gRPC closes descriptors and tells nobody, so they are looked at when they seem too many.
bool PeerUsers::HasFewerThan(size_t most, uid_t user) {
  MutexLock lock(mu_);
  if (Count(user) < most) return true;
  std::erase_if(peers_, [&](const auto& entry) {
    return entry.second.user == user && SocketOf(entry.first) != entry.second.socket;
  });
  return Count(user) < most;
}

std::optional<uid_t> PeerUsers::Find(absl::string_view peer) const {
  int descriptor = -1;
  if (!absl::ConsumePrefix(&peer, "fd:") || !absl::SimpleAtoi(peer, &descriptor)) {
    return std::nullopt;
  }
  MutexLock lock(mu_);
  const auto it = peers_.find(descriptor);
  return it == peers_.end() ? std::nullopt : std::optional(it->second.user);
}

absl::StatusOr<std::unique_ptr<UnixListener>> UnixListener::Start(const std::string& path,
                                                                  grpc::Server& server,
                                                                  PeerUsers& users,
                                                                  size_t most_of_user) {
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
  return std::unique_ptr<UnixListener>(
      new UnixListener(path, descriptor, server, users, most_of_user));
}

UnixListener::UnixListener(std::string path, int descriptor, grpc::Server& server, PeerUsers& users,
                           size_t most_of_user)
    : path_(std::move(path)),
      descriptor_(descriptor),
      server_(server),
      users_(users),
      most_of_user_(most_of_user),
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
    if (getsockopt(accepted, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0) {
      Take(accepted, peer.uid);
    } else {
      close(accepted);
    }
  }
}

void UnixListener::Take(int accepted, uid_t user) {
  if (users_.HasFewerThan(most_of_user_, user)) {
    users_.Note(accepted, user);
    grpc::AddInsecureChannelFromFd(&server_, accepted);
    return;
  }
  close(accepted);
  const Time now = Clock::Real().Now();
  if (now < complain_after_) return;
  complain_after_ = now + std::chrono::seconds(10);
  Log().warn("unix:{}: user {} has {} connections, which is the most: the next ones are hung up on",
             path_, user, most_of_user_);
}

}  // namespace kvstow
