#include "service/spaces/messages.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace kvstow {
namespace {

absl::Status UnknownValue(absl::string_view field, int value) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", value, " is no value that this server knows"));
}

}  // namespace

absl::StatusOr<std::optional<SpaceFidelity>> FidelityFromProto(v1::Fidelity fidelity) {
  switch (fidelity) {
    case v1::FIDELITY_UNSPECIFIED:
      return std::nullopt;
    case v1::EXACT:
      return SpaceFidelity::kExact;
    case v1::DENSE:
      return SpaceFidelity::kDense;
    case v1::SPARSE:
      return SpaceFidelity::kSparse;
    default:
      return UnknownValue("fidelity", fidelity);
  }
}

v1::Fidelity FidelityToProto(SpaceFidelity fidelity) {
  switch (fidelity) {
    case SpaceFidelity::kExact:
      return v1::EXACT;
    case SpaceFidelity::kDense:
      return v1::DENSE;
    case SpaceFidelity::kSparse:
      return v1::SPARSE;
  }
  return v1::DENSE;
}

absl::StatusOr<Ack> AckFromProto(v1::Ack ack, Ack unspecified) {
  switch (ack) {
    case v1::ACK_UNSPECIFIED:
      return unspecified;
    case v1::MEMORY:
      return Ack::kMemory;
    case v1::PROCESS:
      return Ack::kProcess;
    case v1::DURABLE:
      return Ack::kDurable;
    default:
      return UnknownValue("ack", ack);
  }
}

v1::Ack AckToProto(Ack ack) {
  switch (ack) {
    case Ack::kMemory:
      return v1::MEMORY;
    case Ack::kProcess:
      return v1::PROCESS;
    case Ack::kDurable:
      return v1::DURABLE;
  }
  return v1::MEMORY;
}

v1::TierUsage UsageToProto(absl::string_view tier, const TierUsage& usage) {
  v1::TierUsage proto;
  proto.set_tier(std::string(tier));
  proto.set_budget_bytes(usage.budget_bytes);
  proto.set_encoded_bytes(usage.encoded_bytes);
  proto.set_raw_bytes(usage.raw_bytes);
  proto.set_pages(usage.pages);
  proto.set_segments(usage.segments);
  return proto;
}

void ToProto(const StoreUsage& usage, google::protobuf::RepeatedPtrField<v1::TierUsage>& out) {
  for (int t = 0; t < kTiers; ++t) {
    *out.Add() = UsageToProto(TierName(static_cast<TierId>(t)), usage.tiers[t]);
  }
}

uint32_t WholeLevels(const PageHeader& header, size_t present, LayerRange layers) {
  uint32_t levels = LevelsOf(header);
  for (size_t i = present; i < header.segments.size(); ++i) {
    if (header.segments[i].Overlap(layers).count == 0) continue;
    levels = std::min<uint32_t>(levels, header.segments[i].level);
  }
  return levels;
}

uint8_t CountWholeLevels(std::span<const uint8_t> header, size_t present) {
  const absl::StatusOr<PageHeader> parsed = ParsePageHeader(header);
  if (!parsed.ok()) return 0;
  return static_cast<uint8_t>(WholeLevels(*parsed, present, {0, parsed->layers}));
}

std::vector<SegmentFacts> FactsOf(const PageHeader& header) {
  std::vector<SegmentFacts> facts;
  facts.reserve(header.segments.size());
  for (const SegmentInfo& s : header.segments) {
    facts.push_back({.bytes = s.bytes, .gain = s.gain, .digest = s.digest});
  }
  return facts;
}

v1::PageStatus GetOutcome(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return v1::HIT;
    case absl::StatusCode::kNotFound:
      return v1::MISS;
    case absl::StatusCode::kDataLoss:
      return v1::CORRUPT;
    case absl::StatusCode::kFailedPrecondition:
      return v1::NOT_COMPATIBLE;
    default:
      return v1::UNAVAILABLE;
  }
}

grpc::Status ToGrpc(const absl::Status& status) {
  // The codes have the same numbers.
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

}  // namespace kvstow
