// Checks who can reach the server's listeners. Free functions; thread-safe.
#ifndef KVSTOW_SERVICE_OPS_LISTENERS_H_
#define KVSTOW_SERVICE_OPS_LISTENERS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "service/ops/config.h"

namespace kvstow {

// Refuses, with INVALID_ARGUMENT and all their names, listeners without TLS that other machines
// may reach, unless the settings say `insecure`. Loopback addresses and UNIX sockets may stay open.
absl::Status CheckListeners(const Config& config);

// Returns the warnings: a line for each listener that other machines may reach and that asks nobody
// who they are.
std::vector<std::string> WarningsOfListeners(const Config& config);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPS_LISTENERS_H_
