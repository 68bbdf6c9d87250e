#include "service/remote/redis_resolver.h"

#include <netdb.h>

#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/thread.h"

namespace kvstow {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};

absl::StatusOr<SocketAddresses> Resolve(const RedisAddress& address, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const std::string port = absl::StrCat(address.port);
  const int error = getaddrinfo(address.host.c_str(), port.c_str(), &hints, &list);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("redis ", address.text(), ": the host '",
                                               address.host,
                                               "' does not resolve: ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, FreeAddresses> owned(list);
  SocketAddresses out;
  for (const addrinfo* a = list; a != nullptr; a = a->ai_next) {
    SocketAddress one{.size = a->ai_addrlen};
    std::memcpy(&one.storage, a->ai_addr, a->ai_addrlen);
    out.push_back(one);
  }
  return out;
}

}  // namespace

absl::StatusOr<SocketAddresses> ResolveRedis(const RedisAddress& address) {
  return Resolve(address, 0);
}

std::shared_ptr<RedisLookup> RedisLookup::Begin(const RedisAddress& address,
                                                std::function<void()> wake) {
  auto lookup = std::make_shared<RedisLookup>();
  if (auto numeric = Resolve(address, AI_NUMERICHOST); numeric.ok()) {
    lookup->Set(std::move(numeric));
    return lookup;
  }
  auto thread = StartThread("redis-lookup", [lookup, address, wake = std::move(wake)] {
    lookup->Set(ResolveRedis(address));
    wake();
  });
  if (thread.ok()) {
    thread->detach();
  } else {
    lookup->Set(thread.status());
  }
  return lookup;
}

std::optional<absl::StatusOr<SocketAddresses>> RedisLookup::answer() const {
  MutexLock lock(mu_);
  return answer_;
}

void RedisLookup::Set(absl::StatusOr<SocketAddresses> answer) {
  MutexLock lock(mu_);
  answer_ = std::move(answer);
}

}  // namespace kvstow
