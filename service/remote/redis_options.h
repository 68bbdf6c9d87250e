// How to reach a Redis, and how much may wait for it. A value.
#ifndef KVSTOW_SERVICE_REMOTE_REDIS_OPTIONS_H_
#define KVSTOW_SERVICE_REMOTE_REDIS_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "proto/wire/tls_context.h"

namespace kvstow {

struct RedisOptions {
  std::vector<std::string> seeds;  // HOST:PORT of some nodes: one that answers is enough
  std::string user = {};           // "" = the default user
  std::string password = {};       // "" = none
  std::string password_file = {};  // instead of the password: its first line
  bool tls = false;
  TlsFiles tls_files = {};     // ca = whom it trusts; a certificate where the servers ask for one
  std::string tls_name = {};   // that all servers' certificates name; "" = each its own host
  bool replica_reads = false;  // also while the primary is there
  Duration connect_timeout = std::chrono::seconds(1);
  uint64_t queue_bytes = uint64_t{256} << 20;  // of values on their way out, for each node
  uint32_t queue_commands = 16384;             // for each node
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REDIS_OPTIONS_H_
