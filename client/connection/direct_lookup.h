// A Lookup over an idle direct connection, which takes less than one over gRPC.
//
// Thread-safe.
#ifndef KVSTOW_CLIENT_CONNECTION_DIRECT_LOOKUP_H_
#define KVSTOW_CLIENT_CONNECTION_DIRECT_LOOKUP_H_

#include <optional>

#include "absl/status/statusor.h"
#include "client/connection/client_core.h"
#include "kvstow/v1/kv_cache.pb.h"

namespace kvstow {

// Looks up at the node, on this thread. Returns nothing when the Lookup must go over gRPC. Fails
// with DEADLINE_EXCEEDED when no time is left for another attempt.
absl::StatusOr<std::optional<v1::LookupResponse>> LookupDirect(ClientCore& core, Node& node,
                                                               const v1::LookupRequest& request,
                                                               Time deadline);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONNECTION_DIRECT_LOOKUP_H_
