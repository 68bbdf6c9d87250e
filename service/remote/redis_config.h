// RedisOptions, read and checked: files are read, addresses parsed. A value and free functions;
// thread-safe.
#ifndef KVSTOW_SERVICE_REMOTE_REDIS_CONFIG_H_
#define KVSTOW_SERVICE_REMOTE_REDIS_CONFIG_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/wire/tls_context.h"
#include "service/remote/redis_connection.h"
#include "service/remote/redis_node.h"
#include "service/remote/redis_options.h"
#include "service/remote/redis_slots.h"

namespace kvstow {

struct RedisConfig {
  std::vector<RedisAddress> seeds;
  std::string user, password;
  bool tls = false;
  TlsFiles tls_files;
  std::string tls_name;
  bool replica_reads = false;
  RedisLimits limits;
};
// INVALID_ARGUMENT names the option that is wrong.
absl::StatusOr<RedisConfig> ReadRedisOptions(const RedisOptions& options);

// Returns the login for a server. INVALID_ARGUMENT names the TLS file that is wrong.
absl::StatusOr<RedisLogin> RedisLoginOf(const RedisConfig& config, const RedisAddress& address);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REDIS_CONFIG_H_
