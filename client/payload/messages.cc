#include "client/payload/messages.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/codec/run_codecs.h"
#include "kernels/methods/kept_tokens.h"
#include "kernels/methods/run_codec.h"
#include "kernels/recipe/recipe.h"
#include "proto/wire/spec.h"

namespace kvstow {
namespace {

static_assert(static_cast<int>(Fidelity::kSparse) == v1::SPARSE);
static_assert(static_cast<int>(AckLevel::kDurable) == v1::DURABLE);

Fidelity FidelityOf(v1::Fidelity f) {
  return v1::Fidelity_IsValid(f) ? static_cast<Fidelity>(f) : Fidelity::kUnspecified;
}

// Returns whether the call may do better another time. Any other error is an answer.
bool IsPassing(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status) || absl::IsResourceExhausted(status);
}

// Returns SpaceInfo::layers_per_run, for pages as put makes them. Encoded pages travel in whole
// segments.
uint32_t LayersPerRunOf(const KvSpec& spec, const v1::OpenSpaceResponse& response,
                        Payload payload) {
  constexpr uint32_t kRuns = 8;
  const uint32_t usual = (spec.layers + kRuns - 1) / kRuns;
  const absl::StatusOr<Recipe> recipe = ParseRecipe(response.put_pipeline());
  if (!recipe.ok()) return usual;
  const auto together = payload == Payload::kRaw ? LayersTogether(*recipe, spec, response.levels())
                                                 : LayersPerRun(*recipe, spec, response.levels());
  if (!together.ok()) return usual;
  return std::min((usual + *together - 1) / *together * *together, spec.layers);
}

}  // namespace

absl::string_view FidelityName(Fidelity f) {
  switch (f) {
    case Fidelity::kUnspecified:
      return "unspecified";
    case Fidelity::kExact:
      return "exact";
    case Fidelity::kDense:
      return "dense";
    case Fidelity::kSparse:
      return "sparse";
  }
  return "unknown";
}

absl::string_view OutcomeName(PageOutcome outcome) {
  switch (outcome) {
    case PageOutcome::kHit:
      return "HIT";
    case PageOutcome::kMiss:
      return "MISS";
    case PageOutcome::kCorrupt:
      return "CORRUPT";
    case PageOutcome::kExpired:
      return "EXPIRED";
    case PageOutcome::kUnavailable:
      return "UNAVAILABLE";
    case PageOutcome::kNotCompatible:
      return "NOT_COMPATIBLE";
    case PageOutcome::kStored:
      return "STORED";
    case PageOutcome::kAlreadyThere:
      return "ALREADY_THERE";
    case PageOutcome::kConflict:
      return "CONFLICT";
    case PageOutcome::kRefused:
      return "REFUSED";
  }
  return "UNKNOWN";
}

PageOutcome OutcomeOf(v1::PageStatus status) {
  switch (status) {
    case v1::HIT:
      return PageOutcome::kHit;
    case v1::MISS:
      return PageOutcome::kMiss;
    case v1::CORRUPT:
      return PageOutcome::kCorrupt;
    case v1::EXPIRED:
      return PageOutcome::kExpired;
    case v1::NOT_COMPATIBLE:
      return PageOutcome::kNotCompatible;
    case v1::STORED:
      return PageOutcome::kStored;
    case v1::ALREADY_THERE:
      return PageOutcome::kAlreadyThere;
    case v1::CONFLICT:
      return PageOutcome::kConflict;
    case v1::REFUSED:
      return PageOutcome::kRefused;
    default:
      return PageOutcome::kUnavailable;
  }
}

void ToProto(const PageGet& page, v1::GetPage& out) {
  out.set_key(page.key);
  out.set_max_levels(page.max_levels);
  out.set_min_levels(page.min_levels);
  if (page.max_error != std::numeric_limits<double>::infinity()) {
    out.set_max_error(page.max_error);
  }
  out.set_first_layer(page.first_layer);
  out.set_layer_count(page.layer_count);
  out.set_first_token(page.first_token);
  out.set_token_count(page.token_count);
  out.set_again(page.again);
}

void ToProto(const PagePut& page, v1::PutPage& out) {
  out.set_key(page.key);
  out.set_tokens(page.tokens);
  out.set_first_position(page.first_position);
  out.set_ack(static_cast<v1::Ack>(page.ack));
}

PutResult PutResultOf(const v1::PutResult& result) {
  PutResult out;
  out.outcome = OutcomeOf(result.status());
  out.message = result.message();
  out.stored_bytes = result.stored_bytes();
  out.recipe = result.recipe();
  out.fell_back = result.fell_back();
  if (v1::Ack_IsValid(result.ack())) out.ack = static_cast<AckLevel>(result.ack());
  return out;
}

GetResult GetResultOf(const v1::PageReply& reply) {
  GetResult out;
  out.outcome = OutcomeOf(reply.status());
  out.message = reply.message();
  out.tokens = reply.tokens();
  out.first_position = reply.first_position();
  out.bytes = reply.payload_bytes() - std::min(reply.kept().bytes(), reply.payload_bytes());
  out.tier = reply.tier();
  out.recipe = reply.recipe();
  out.raw_digest = reply.raw_digest();
  out.exact = reply.exact();
  out.levels = reply.levels();
  out.levels_stored = reply.levels_stored();
  out.estimated_error = reply.estimated_error();
  out.kept_share = reply.has_kept() ? reply.kept_share() : 1;
  out.stored_bytes = reply.stored_bytes();
  return out;
}

// A list of kept tokens has no more entries than the page has bytes.
absl::StatusOr<std::vector<uint8_t>> KeepOf(const v1::KeptTokens& kept, const GetResult& page,
                                            std::span<const uint8_t> list) {
  const uint64_t lists = uint64_t{kept.layers()} * kept.kv_heads();
  if (page.tokens == 0 || lists > page.bytes / page.tokens) {
    return absl::InternalError("the server sent a list of more tokens than the page has");
  }
  auto selection = ReadKept(list, kept.layers(), page.tokens, kept.kv_heads());
  if (!selection.ok()) return absl::InternalError(selection.status().message());
  return std::move(selection->keep);
}

absl::StatusOr<SpaceInfo> SpaceInfoOf(absl::string_view name, const v1::OpenSpaceResponse& response,
                                      Payload payload) {
  SpaceInfo out;
  out.name = std::string(name);
  KVSTOW_ASSIGN_OR_RETURN(out.spec, FromProto(response.spec()));
  out.recipe = response.recipe();
  out.pipeline = response.pipeline();
  out.fingerprint = response.fingerprint();
  out.fidelity = FidelityOf(response.fidelity());
  out.is_private = response.is_private();
  out.created = response.created();
  out.wants_statistics = response.wants_statistics();
  out.levels = response.levels();
  out.layers_per_run = LayersPerRunOf(out.spec, response, payload);
  return out;
}

v1::OpenSpaceRequest RequestOf(const SpaceOptions& options) {
  v1::OpenSpaceRequest request;
  request.set_space(options.name);
  ToProto(options.spec, *request.mutable_spec());
  request.set_recipe(options.recipe);
  request.set_fidelity(static_cast<v1::Fidelity>(options.fidelity));
  if (options.is_private.has_value()) request.set_is_private(*options.is_private);
  request.set_queries(options.queries);
  request.set_normed_keys(options.normed_keys);
  return request;
}

PageOutcome OutcomeOfFailedPut(const absl::Status& status) {
  if (absl::IsFailedPrecondition(status)) return PageOutcome::kNotCompatible;
  return IsPassing(status) ? PageOutcome::kUnavailable : PageOutcome::kRefused;
}

PageOutcome OutcomeOfFailedGet(const absl::Status& status) {
  if (absl::IsFailedPrecondition(status)) return PageOutcome::kNotCompatible;
  return absl::IsNotFound(status) ? PageOutcome::kMiss : PageOutcome::kUnavailable;
}

}  // namespace kvstow
