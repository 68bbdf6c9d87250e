// Converts the messages of the wire from and to the client's own types.
//
// Free functions; thread-safe. A value that this build does not know becomes the safest one: an
// unknown page status becomes UNAVAILABLE.
#ifndef KVSTOW_CLIENT_PAYLOAD_MESSAGES_H_
#define KVSTOW_CLIENT_PAYLOAD_MESSAGES_H_

#include "absl/status/statusor.h"
#include "client/pages.h"
#include "client/spaces.h"
#include "kvstow/v1/kv_cache.pb.h"

namespace kvstow {

PageOutcome OutcomeOf(v1::PageStatus status);
// Write all fields but the number and the payload's size, which the call sets.
void ToProto(const PageGet& page, v1::GetPage& out);
void ToProto(const PagePut& page, v1::PutPage& out);

PutResult PutResultOf(const v1::PutResult& result);
GetResult GetResultOf(const v1::PageReply& reply);
// Reads the kept tokens of a page (GetResult::keep) from the list that `kept` describes. Fails with
// INTERNAL when the list does not fit the page.
absl::StatusOr<std::vector<uint8_t>> KeepOf(const v1::KeptTokens& kept, const GetResult& page,
                                            std::span<const uint8_t> list);
// `payload` says how the pages of the space travel.
absl::StatusOr<SpaceInfo> SpaceInfoOf(absl::string_view name, const v1::OpenSpaceResponse& response,
                                      Payload payload);
v1::OpenSpaceRequest RequestOf(const SpaceOptions& options);

// Return the outcome of a page whose call failed with `status`.
PageOutcome OutcomeOfFailedPut(const absl::Status& status);
PageOutcome OutcomeOfFailedGet(const absl::Status& status);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_PAYLOAD_MESSAGES_H_
