// Rate control: a recipe that asks for a ratio or for an error instead of a step, as
// `kvstow(ratio=8)`, `kvstow-cal(run=5,error=0.02)` or `planes(ratio=8,levels=3)`.
//
//   ratio  raw bytes over everything stored of the page, 1 to 1000
//   error  squared error over energy, the mean of the page's slabs as SegmentInfo::gain has it,
//          1e-6 to 0.9
//
// For each page the codec looks for the step that comes closest: it encodes with a step, draws the
// line through the logarithms of what it measured, and tries where that line meets the target,
// within what is bracketed; at most kMostTrials times. The page then says the step that made it
// (`planes(step=0.5312,...)`) and is like any other. A target that no step reaches gets the step at
// that end of the op's range.
//
// Encoding is deterministic: the search uses nothing but sums and products. Thread-safe.
#ifndef KVSTOW_KERNELS_CODEC_RATE_CODEC_H_
#define KVSTOW_KERNELS_CODEC_RATE_CODEC_H_

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "kernels/codec/codec.h"
#include "kernels/recipe/recipe.h"

namespace kvstow {

// How close is close enough, relative to the target.
inline constexpr double kRatioTolerance = 0.004, kErrorTolerance = 0.01;
inline constexpr int kMostTrials = 8;

struct RateTarget {
  size_t op = 0;  // which of the recipe's ops has it
  bool is_error = false;
  double value = 0;
};

// Nothing when the recipe asks for neither. INVALID_ARGUMENT for a value out of range.
absl::StatusOr<std::optional<RateTarget>> RateTargetOf(const Recipe& recipe);

// The recipe with `step` where the target stood.
absl::StatusOr<Recipe> WithStep(const Recipe& recipe, const RateTarget& target, double step);

// The recipe with `ratio` or `error` (`name`) in the place of its step. INVALID_ARGUMENT when none
// of its ops takes a step, or the value is out of range.
absl::StatusOr<Recipe> WithTarget(const Recipe& recipe, absl::string_view name, double value);

// `make` gives the codec of a recipe with a step.
using MakeSteppedCodec =
    std::function<absl::StatusOr<std::shared_ptr<const Codec>>(const Recipe& recipe)>;
absl::StatusOr<std::shared_ptr<const Codec>> MakeRateCodec(const Recipe& recipe,
                                                           const RateTarget& target,
                                                           MakeSteppedCodec make);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CODEC_RATE_CODEC_H_
