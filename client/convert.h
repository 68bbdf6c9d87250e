// Answers of the wire as the client's own types.
//
// Free functions; thread-safe. Values that this build does not know become the safest one: an
// unknown page status is UNAVAILABLE.
#ifndef KVSTOW_CLIENT_CONVERT_H_
#define KVSTOW_CLIENT_CONVERT_H_

#include "absl/status/statusor.h"
#include "client/client.h"
#include "kvstow/v1/kv_cache.pb.h"

namespace kvstow {

PageOutcome OutcomeOf(v1::PageStatus status);
PutResult PutResultOf(const v1::PutResult& result);
GetResult GetResultOf(const v1::PageReply& reply);
absl::StatusOr<SpaceInfo> SpaceInfoOf(absl::string_view name,
                                      const v1::OpenSpaceResponse& response);
v1::OpenSpaceRequest RequestOf(const SpaceOptions& options);

// What a page is when its call failed with `status`.
PageOutcome OutcomeOfFailedPut(const absl::Status& status);
PageOutcome OutcomeOfFailedGet(const absl::Status& status);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONVERT_H_
