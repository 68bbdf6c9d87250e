// Addresses of hosts, without waiting.
//
// The system's resolver may wait for seconds, so it runs on a thread of its own, one for each
// lookup. Numbers, such as 10.0.0.1 and ::1, need none. Thread-safe. A lookup may outlive whoever
// began it.
#ifndef KVSTOW_SERVICE_REMOTE_REDIS_RESOLVER_H_
#define KVSTOW_SERVICE_REMOTE_REDIS_RESOLVER_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "service/remote/redis_connection.h"
#include "service/remote/redis_slots.h"

namespace kvstow {

using SocketAddresses = std::vector<SocketAddress>;  // one at least

// Waits for the system's resolver. UNAVAILABLE names a host that it does not know.
absl::StatusOr<SocketAddresses> ResolveRedis(const RedisAddress& address);

class RedisLookup {
 public:
  // Calls `wake` on another thread when the answer is there; never when it is there at once.
  static std::shared_ptr<RedisLookup> Begin(const RedisAddress& address,
                                            std::function<void()> wake);
  // Returns the answer, once it is there.
  std::optional<absl::StatusOr<SocketAddresses>> answer() const;

 private:
  void Set(absl::StatusOr<SocketAddresses> answer);

  mutable Mutex mu_;
  std::optional<absl::StatusOr<SocketAddresses>> answer_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REDIS_RESOLVER_H_
