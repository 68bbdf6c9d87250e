// Rate control: a recipe that asks for a ratio, an error or a divergence instead of a step, as in
// `kvstow(ratio=8)`, `kvstow-cal(run=5,divergence=0.005)` or `planes(ratio=8,levels=3)`.
//
//   ratio       raw bytes over everything stored of the page, 1 to 1000
//   error       squared error over energy, the mean of the page's slabs as SegmentInfo::gain has
//               it, 1e-6 to 0.9
//   divergence  what the page costs a model's next tokens, in nats, as predicted
//               (methods/divergence_meter.h), 1e-4 to 1. The prediction goes by the statistics of
//               the model where the calibration has them (section `stats`). Each trial decodes.
//
// For each page the codec looks for the step that comes closest. It encodes with a step, draws the
// line through the logarithms of its measurements, and tries the step where that line meets the
// target, within the bracket. It tries at most kMostTrials steps. The page then says the step that
// made it (`planes(step=0.53120,...)`) and is like any other. A target that no step reaches gets
// the step at that end of the op's range.
//
// Encoding is deterministic: the search uses a piecewise linear logarithm, which is the same on
// every machine. Thread-safe.
#ifndef KVSTOW_KERNELS_CODEC_RATE_CODEC_H_
#define KVSTOW_KERNELS_CODEC_RATE_CODEC_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "kernels/codec/codec.h"
#include "kernels/recipe/recipe.h"

namespace kvstow {

// The tolerance of the search, relative to the target.
inline constexpr double kRatioTolerance = 0.004, kErrorTolerance = 0.01;
inline constexpr double kDivergenceTolerance = 0.02;
inline constexpr int kMostTrials = 8;

enum class Rate : uint8_t { kRatio, kError, kDivergence };

// Returns whether an argument of this name is a target.
bool IsRateTarget(absl::string_view name);

struct RateTarget {
  size_t op = 0;  // index of the recipe's op that has it
  Rate rate = Rate::kRatio;
  double value = 0;
};

// Returns nothing when the recipe asks for none. Fails with INVALID_ARGUMENT for a value out of
// range.
absl::StatusOr<std::optional<RateTarget>> RateTargetOf(const Recipe& recipe);

// Returns the recipe with `step` in the place of the target.
absl::StatusOr<Recipe> WithStep(const Recipe& recipe, const RateTarget& target, double step);

// Returns the recipe with `ratio`, `error` or `divergence` (`name`) in the place of its step. Fails
// with INVALID_ARGUMENT when none of its ops takes a step, or the value is out of range.
absl::StatusOr<Recipe> WithTarget(const Recipe& recipe, absl::string_view name, double value);

// Makes the codec of a recipe with a step.
using MakeSteppedCodec =
    std::function<absl::StatusOr<std::shared_ptr<const Codec>>(const Recipe& recipe)>;
// Predicts what an encoded page costs. May be null for other targets than a divergence.
using PredictDivergence =
    std::function<absl::StatusOr<double>(const PageToEncode& page, const EncodedPage& encoded)>;
absl::StatusOr<std::shared_ptr<const Codec>> MakeRateCodec(const Recipe& recipe,
                                                           const RateTarget& target,
                                                           MakeSteppedCodec make,
                                                           PredictDivergence predict);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CODEC_RATE_CODEC_H_
