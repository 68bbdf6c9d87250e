// Bandwidths as people write them.
//
// Free function; thread-safe.
#ifndef KVSTOW_CLIENT_PLANNER_BANDWIDTH_H_
#define KVSTOW_CLIENT_PLANNER_BANDWIDTH_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvstow::planner {

// "10GB/s", "25Gbit/s", "100Gbps": bytes a second, above 0. INVALID_ARGUMENT names the text.
absl::StatusOr<double> ParseBandwidth(absl::string_view text);

}  // namespace kvstow::planner

#endif  // KVSTOW_CLIENT_PLANNER_BANDWIDTH_H_
