// Checks who can reach the server's listeners. A free function; thread-safe.
#ifndef KVSTOW_SERVICE_OPS_LISTENERS_H_
#define KVSTOW_SERVICE_OPS_LISTENERS_H_

#include <string>
#include <vector>

#include "service/ops/config.h"

namespace kvstow {

// Returns the warnings: a line for each listener that other machines may reach.
std::vector<std::string> WarningsOfListeners(const Config& config);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPS_LISTENERS_H_
