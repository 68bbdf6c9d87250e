#include "service/spaces/space_fidelity.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "kernels/importance/policy.h"

namespace kvstow {
namespace {

constexpr uint8_t kPrivateBit = 0x80;

// Returns whether this form of a sparse space may drop tokens as it does.
absl::Status CheckPolicy(const Recipe& recipe, bool is_private) {
  KVSTOW_ASSIGN_OR_RETURN(const ImportancePolicy policy,
                          ImportancePolicy::Make(recipe.policy_ops()));
  if (policy.columns().empty() || is_private) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "recipe '", recipe.text(), "' drops tokens by what queries looked at (",
      absl::StrJoin(policy.columns(), ", "),
      "), and what one did not need fails the next session that shares the page: open the space as "
      "private (--private), for one session alone, or use a policy of K, V and position, as "
      "keydiff or knorm"));
}

}  // namespace

absl::string_view SpaceFidelityName(SpaceFidelity fidelity) {
  switch (fidelity) {
    case SpaceFidelity::kExact:
      return "EXACT";
    case SpaceFidelity::kDense:
      return "DENSE";
    case SpaceFidelity::kSparse:
      return "SPARSE";
  }
  return "unknown";
}

absl::StatusOr<SpacePromise> PromiseOf(const SpaceRecipe& recipe, bool lossless,
                                       std::optional<SpaceFidelity> fidelity, bool is_private) {
  const std::string text = PipelineOf(recipe);
  SpacePromise out{
      .fidelity = fidelity.value_or(lossless ? SpaceFidelity::kExact : SpaceFidelity::kDense),
      .is_private = is_private};
  if (out.fidelity == SpaceFidelity::kExact && !lossless) {
    return absl::InvalidArgumentError(
        absl::StrCat("fidelity EXACT with recipe '", text,
                     "', which loses bits: use an exact recipe, as `raw`, or fidelity DENSE"));
  }
  if (recipe.divergence.has_value() && out.fidelity != SpaceFidelity::kDense) {
    return absl::InvalidArgumentError(absl::StrCat(
        "recipe '", text, "' keeps every token and loses bits: its fidelity is DENSE"));
  }
  const bool cold_drops = recipe.cold.has_value() && recipe.cold->drops_tokens();
  if (!recipe.hot.drops_tokens() && !cold_drops) return out;
  if (out.fidelity != SpaceFidelity::kSparse) {
    return absl::InvalidArgumentError(
        absl::StrCat("recipe '", text,
                     "' drops tokens, and its pages do not come back whole: ask for fidelity "
                     "SPARSE where the worker masks them, or use its codec alone"));
  }
  if (recipe.cold.has_value() && recipe.hot.drops_tokens()) {
    return absl::InvalidArgumentError(
        absl::StrCat("recipe '", text,
                     "': a cold form is made of what the hot one kept, so a hot form must keep "
                     "every token: drop them in the cold one"));
  }
  KVSTOW_RETURN_IF_ERROR(CheckPolicy(cold_drops ? *recipe.cold : recipe.hot, is_private));
  return out;
}

uint8_t PromiseByte(SpacePromise promise) {
  return static_cast<uint8_t>(promise.fidelity) | (promise.is_private ? kPrivateBit : 0);
}

absl::StatusOr<SpacePromise> PromiseFromByte(uint8_t byte) {
  const auto fidelity = static_cast<SpaceFidelity>(byte & ~kPrivateBit);
  if (fidelity < SpaceFidelity::kExact || fidelity > SpaceFidelity::kSparse) {
    return absl::FailedPreconditionError(
        absl::StrCat("the record of a space has fidelity ", byte, ", which this server lacks"));
  }
  return SpacePromise{.fidelity = fidelity, .is_private = (byte & kPrivateBit) != 0};
}

}  // namespace kvstow
