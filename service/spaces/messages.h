// Converts between the wire's types and the project's own (KvSpec: proto/wire/spec.h).
//
// Free functions; thread-safe. Errors are INVALID_ARGUMENT and name the field.
#ifndef KVSTOW_SERVICE_SPACES_MESSAGES_H_
#define KVSTOW_SERVICE_SPACES_MESSAGES_H_

#include <grpcpp/support/status.h>

#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/page/encoded_page.h"
#include "kvstow/v1/types.pb.h"
#include "service/spaces/spaces.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

// Returns nullopt for unspecified.
absl::StatusOr<std::optional<SpaceFidelity>> FidelityFromProto(v1::Fidelity fidelity);
v1::Fidelity FidelityToProto(SpaceFidelity fidelity);

// `unspecified` is the meaning of ACK_UNSPECIFIED on this server.
absl::StatusOr<Ack> AckFromProto(v1::Ack ack, Ack unspecified);
v1::Ack AckToProto(Ack ack);

v1::TierUsage UsageToProto(absl::string_view tier, const TierUsage& usage);
// Appends each tier's usage, in order.
void ToProto(const StoreUsage& usage, google::protobuf::RepeatedPtrField<v1::TierUsage>& out);

// Returns a page's failure as its typed result.
v1::PageStatus GetOutcome(const absl::Status& status);

grpc::Status ToGrpc(const absl::Status& status);

// Returns the number of levels that are whole in the range when the first `present` segments are
// there.
uint32_t WholeLevels(const PageHeader& header, size_t present, LayerRange layers);
// Does the same for all layers; 0 when the header does not parse. The store's Lookup reports this.
uint8_t CountWholeLevels(std::span<const uint8_t> header, size_t present);

// Returns the facts of a page's segments for the store.
std::vector<SegmentFacts> FactsOf(const PageHeader& header);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_SPACES_MESSAGES_H_
