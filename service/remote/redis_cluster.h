// RedisCluster: a RemoteStore on a Redis Cluster, on Valkey, or on a single Redis.
//
// One thread does all I/O, with one connection to each node. It asks the nodes who has which slots,
// follows slots that move, and asks again when a node is lost. A node that fails is left alone for
// a while; calls for its slots are told UNAVAILABLE at once, and reads go to its replicas. A node
// that is silent holds up neither other nodes nor any call past its deadline.
//
// Commands: GET, SET (with PX), EXISTS, UNLINK, CLUSTER SLOTS, and for the login AUTH, READONLY and
// PING. It needs Redis 6.0 at least, and takes values of up to 64 MiB and names of up to 4 KiB.
#ifndef KVSTOW_SERVICE_REMOTE_REDIS_CLUSTER_H_
#define KVSTOW_SERVICE_REMOTE_REDIS_CLUSTER_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "service/remote/redis_options.h"
#include "service/remote/remote_store.h"

namespace kvstow {

inline constexpr size_t kMaxRedisNameBytes = 4096;

// Checks the options and starts the thread; it waits for no server. INVALID_ARGUMENT names the
// option that is wrong. The store answers all calls, with CANCELLED, before it goes.
absl::StatusOr<std::unique_ptr<RemoteStore>> OpenRedis(const RedisOptions& options);

// Says what is wrong with the servers, for a start that should fail early. It waits, at most until
// `deadline`, and is content when one of the seeds is good. Errors: UNAVAILABLE (the host does not
// resolve, nobody listens, the cluster is not ok), PERMISSION_DENIED (user, password or ACL),
// INVALID_ARGUMENT (an option, or what listens is no Redis), FAILED_PRECONDITION (older than 6.0,
// or a replica outside of a cluster, which takes no values).
absl::Status CheckRedis(const RedisOptions& options, Time deadline);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REDIS_CLUSTER_H_
