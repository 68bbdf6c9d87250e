// Parses bandwidths as people write them.
//
// Free function; thread-safe.
#ifndef KVSTOW_CLIENT_PLANNER_BANDWIDTH_H_
#define KVSTOW_CLIENT_PLANNER_BANDWIDTH_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvstow::planner {

// Returns the bytes a second, above 0, of "10GB/s", "25Gbit/s", "100Gbps", "25Gbit". "B" means
// bytes; "b" and "bit" mean bits. "gb/s" could be either, and "10G" names neither: they are
// refused. Fails with INVALID_ARGUMENT, which names the text.
absl::StatusOr<double> ParseBandwidth(absl::string_view text);

}  // namespace kvstow::planner

#endif  // KVSTOW_CLIENT_PLANNER_BANDWIDTH_H_
