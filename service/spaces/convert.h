// Between the wire's types and the project's own (KvSpec: proto/wire/spec.h).
//
// Free functions; thread-safe. Errors are INVALID_ARGUMENT and name the field.
#ifndef KVSTOW_SERVICE_SPACES_CONVERT_H_
#define KVSTOW_SERVICE_SPACES_CONVERT_H_

#include <grpcpp/support/status.h>

#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/page/encoded_page.h"
#include "kvstow/v1/types.pb.h"
#include "service/spaces/spaces.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

// nullopt = unspecified. UNIMPLEMENTED for SPARSE.
absl::StatusOr<std::optional<SpaceFidelity>> FidelityFromProto(v1::Fidelity fidelity);
v1::Fidelity FidelityToProto(SpaceFidelity fidelity);

// `unspecified` is what ACK_UNSPECIFIED means on this server.
absl::StatusOr<Ack> AckFromProto(v1::Ack ack, Ack unspecified);
v1::Ack AckToProto(Ack ack);

v1::TierUsage UsageToProto(absl::string_view tier, const TierUsage& usage);

// What kind of failure a page met, as its typed result.
v1::PageStatus GetOutcome(const absl::Status& status);

grpc::Status ToGrpc(const absl::Status& status);

// Levels of which nothing is missing in the range when the first `present` segments are there.
uint32_t WholeLevels(const PageHeader& header, size_t present, LayerRange layers);
// Of all layers; 0 when the header does not parse. What the store's Lookup tells.
uint8_t CountWholeLevels(std::span<const uint8_t> header, size_t present);

// What the store is told of a page's segments.
std::vector<SegmentFacts> FactsOf(const PageHeader& header);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_SPACES_CONVERT_H_
