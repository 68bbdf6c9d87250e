// Who can reach what the server listens on. A free function; thread-safe.
#ifndef KVSTOW_SERVICE_OPS_LISTENERS_H_
#define KVSTOW_SERVICE_OPS_LISTENERS_H_

#include <string>
#include <vector>

#include "service/ops/config.h"

namespace kvstow {

// What is to be warned of: a line for each listener that other machines may reach.
std::vector<std::string> WarningsOfListeners(const Config& config);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPS_LISTENERS_H_
