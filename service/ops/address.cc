#include "service/ops/address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace kvstow {
namespace {

absl::Status Refuse(absl::string_view value, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat("'", value, "' is not ", expected));
}

constexpr int kBacklog = 128;

// What to do about an errno of bind.
absl::string_view Advice(int error) {
  switch (error) {
    case EADDRINUSE:
      return "another program listens there: stop it, or choose another address";
    case EACCES:
    case EPERM:
      return "this user may not: choose a port above 1023, or a folder that it may write to";
    case EADDRNOTAVAIL:
      return "this machine has no such address: choose one of its own, or 0.0.0.0";
    case ENOENT:
      return "make its folder first";
    default:
      return "choose another address";
  }
}

absl::Status CannotListen(absl::string_view setting, const Address& address, absl::string_view why,
                          absl::string_view advice) {
  const bool is_ipv6 = absl::StrContains(address.host, ':');
  const std::string host = is_ipv6 ? absl::StrCat("[", address.host, "]") : address.host;
  const std::string where = address.path.empty() ? absl::StrCat(host, ":", address.port)
                                                 : absl::StrCat("unix:", address.path);
  return absl::UnavailableError(
      absl::StrCat(setting, ": the server cannot listen at ", where, " (", why, "): ", advice));
}

// Returns the errno; 0 = it listens.
int Listen(int descriptor, const sockaddr* address, socklen_t bytes) {
  // Not SO_REUSEPORT: two servers on one port would share it silently.
  const int on = 1;
  setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const bool listens = bind(descriptor, address, bytes) == 0 && listen(descriptor, kBacklog) == 0;
  return listens ? 0 : errno;
}

Descriptor NewSocket(int family) {
  return Descriptor(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

}  // namespace

absl::StatusOr<Descriptor> ListenAt(absl::string_view setting, const Address& address) {
  Descriptor out(-1);
  int error = 0;
  if (!address.path.empty()) {
    sockaddr_un local{};
    local.sun_family = AF_UNIX;
    std::strncpy(local.sun_path, address.path.c_str(), sizeof(local.sun_path) - 1);
    out = NewSocket(AF_UNIX);
    error = Listen(out.get(), reinterpret_cast<const sockaddr*>(&local), sizeof(local));
  } else {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    addrinfo* list = nullptr;
    const int unknown =
        getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &list);
    if (unknown != 0) {
      return CannotListen(setting, address, gai_strerror(unknown), Advice(EADDRNOTAVAIL));
    }
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> found(list, freeaddrinfo);
    out = NewSocket(list->ai_family);
    error = Listen(out.get(), list->ai_addr, list->ai_addrlen);
  }
  if (error != 0) return CannotListen(setting, address, std::strerror(error), Advice(error));
  return out;
}

bool Address::loopback() const {
  return !path.empty() || host == "localhost" || host == "::1" || absl::StartsWith(host, "127.");
}

absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  Address address;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "unix:")) {
    address.path = std::string(rest);
    if (rest.empty() || rest.size() > 100) return Refuse(text, "unix:PATH with 1 to 100 bytes");
    return address;
  }
  const size_t colon = rest.rfind(':');
  uint32_t port = 0;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(rest.substr(colon + 1), &port) || port > 65535) {
    return Refuse(text, "an address: write HOST:PORT or unix:PATH, as 127.0.0.1:7380");
  }
  absl::string_view host = rest.substr(0, colon);
  const bool brackets = absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
  if (!brackets && absl::StrContains(host, ':')) {
    return Refuse(text, "an address: put an IPv6 host in brackets, as [::1]:7380");
  }
  address.host = std::string(host);
  address.port = static_cast<int>(port);
  return address;
}

}  // namespace kvstow
