#include "client/cli/bench/socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/cli/text.h"

namespace kvstow::cli {
namespace {

constexpr double kPatience = 10;  // seconds for a server to start
constexpr size_t kLongestLine = 4096;

absl::Status Failed(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

struct Address {
  union {
    sockaddr any;
    sockaddr_in inet;
    sockaddr_un local;
  };
  socklen_t size = 0;
};

absl::StatusOr<Address> Parse(const std::string& text) {
  Address address;
  std::memset(&address.local, 0, sizeof(address.local));
  if (text.rfind("unix:", 0) == 0) {
    const std::string path = text.substr(5);
    if (path.size() >= sizeof(address.local.sun_path))
      return absl::InvalidArgumentError(absl::StrCat(path, " is too long for a socket's path"));
    address.local.sun_family = AF_UNIX;
    path.copy(address.local.sun_path, path.size());
    address.size = sizeof(address.local);
    return address;
  }
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(text.substr(colon + 1), &port) ||
      inet_pton(AF_INET, text.substr(0, colon).c_str(), &address.inet.sin_addr) != 1) {
    return absl::InvalidArgumentError(absl::StrCat(text, " is neither ADDRESS:PORT nor unix:PATH"));
  }
  address.inet.sin_family = AF_INET;
  address.inet.sin_port = htons(static_cast<uint16_t>(port));
  address.size = sizeof(address.inet);
  return address;
}

}  // namespace

absl::StatusOr<Socket> Socket::Connect(const std::string& address) {
  KVSTOW_ASSIGN_OR_RETURN(const Address to, Parse(address));
  const Time start = Clock::Real().Now();
  while (true) {
    Socket socket(::socket(to.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (socket.descriptor_ < 0) return Failed("socket");
    if (connect(socket.descriptor_, &to.any, to.size) == 0) {
      const timeval patience{.tv_sec = 30};
      setsockopt(socket.descriptor_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
      setsockopt(socket.descriptor_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
      const int on = 1;
      if (to.any.sa_family == AF_INET)
        setsockopt(socket.descriptor_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      return socket;
    }
    if (SecondsSince(start) > kPatience) return Failed(absl::StrCat("connecting to ", address));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

Socket::~Socket() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status Socket::Send(std::span<const absl::string_view> parts) {
  std::vector<iovec> left;
  for (const absl::string_view part : parts)
    left.push_back({const_cast<char*>(part.data()), part.size()});
  for (size_t next = 0; next < left.size();) {
    msghdr message{.msg_iov = &left[next], .msg_iovlen = left.size() - next};
    const ssize_t sent = sendmsg(descriptor_, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return Failed("sending");
    size_t done = static_cast<size_t>(sent);
    for (; next < left.size() && done >= left[next].iov_len; ++next) done -= left[next].iov_len;
    if (next == left.size()) break;
    left[next].iov_base = static_cast<char*>(left[next].iov_base) + done;
    left[next].iov_len -= done;
  }
  return absl::OkStatus();
}

absl::Status Socket::Receive(std::span<uint8_t> out) {
  const size_t known = std::min(out.size(), ahead_.size());
  std::copy_n(ahead_.begin(), known, out.begin());
  ahead_.erase(0, known);
  for (size_t at = known; at < out.size();) {
    const ssize_t got = recv(descriptor_, out.data() + at, out.size() - at, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Failed("receiving");
    if (got == 0) return absl::UnavailableError("the server hung up");
    at += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Socket::ReceiveLine() {
  while (true) {
    if (const size_t end = ahead_.find("\r\n"); end != std::string::npos) {
      std::string line = ahead_.substr(0, end);
      ahead_.erase(0, end + 2);
      return line;
    }
    if (ahead_.size() > kLongestLine) return absl::DataLossError("a line that does not end");
    char more[512];
    const ssize_t got = recv(descriptor_, more, sizeof(more), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Failed("receiving");
    if (got == 0) return absl::UnavailableError("the server hung up");
    ahead_.append(more, static_cast<size_t>(got));
  }
}

absl::StatusOr<Listener> Listener::Open(const std::string& host) {
  KVSTOW_ASSIGN_OR_RETURN(Address any, Parse(host + ":0"));
  Listener listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (bind(listener.descriptor_, &any.any, any.size) != 0 ||
      listen(listener.descriptor_, SOMAXCONN) != 0 ||
      getsockname(listener.descriptor_, &any.any, &any.size) != 0) {
    return Failed(absl::StrCat("listening on a free port of ", host));
  }
  listener.port_ = ntohs(any.inet.sin_port);
  return listener;
}

Listener::~Listener() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::StatusOr<Socket> Listener::Accept() {
  const int descriptor = accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC);
  if (descriptor < 0) return Failed("accepting");
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return Socket(descriptor);
}

void Listener::Stop() { shutdown(descriptor_, SHUT_RDWR); }

absl::StatusOr<int> PortForAServer(const std::string& host) {
  KVSTOW_ASSIGN_OR_RETURN(const Listener listener, Listener::Open(host));
  return listener.port();
}

}  // namespace kvstow::cli
