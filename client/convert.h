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
// All but the number and the payload's size, which are the call's to give.
void ToProto(const PageGet& page, v1::GetPage& out);
void ToProto(const PagePut& page, v1::PutPage& out);

PutResult PutResultOf(const v1::PutResult& result);
GetResult GetResultOf(const v1::PageReply& reply);
// Which tokens of a page were kept (GetResult::keep), from the list that `kept` speaks of; INTERNAL
// when it is not one of such a page.
absl::StatusOr<std::vector<uint8_t>> KeepOf(const v1::KeptTokens& kept, const GetResult& page,
                                            std::span<const uint8_t> list);
// `payload` is how its pages are to go.
absl::StatusOr<SpaceInfo> SpaceInfoOf(absl::string_view name, const v1::OpenSpaceResponse& response,
                                      Payload payload);
v1::OpenSpaceRequest RequestOf(const SpaceOptions& options);

// What a page is when its call failed with `status`.
PageOutcome OutcomeOfFailedPut(const absl::Status& status);
PageOutcome OutcomeOfFailedGet(const absl::Status& status);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONVERT_H_
