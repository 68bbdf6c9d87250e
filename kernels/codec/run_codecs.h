// Makes the run codec (run_codec.h) of a recipe, and reads what the recipe says of runs and
// calibrations.
//
// Free functions: thread-safe.
#ifndef KVSTOW_KERNELS_CODEC_RUN_CODECS_H_
#define KVSTOW_KERNELS_CODEC_RUN_CODECS_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/calibration/calibration.h"
#include "kernels/methods/run_codec.h"
#include "kernels/page/page.h"
#include "kernels/recipe/recipe.h"

namespace kvstow {

// `spec` needs only the fields that a page header gives. `calibration` is null when
// CalibrationNeeds returns nothing. INVALID_ARGUMENT names the recipe and what is wrong.
absl::StatusOr<std::unique_ptr<const RunCodec>> MakeRunCodec(
    const Recipe& recipe, const KvSpec& spec, std::shared_ptr<const Calibration> calibration);

// Returns the calibration that the recipe needs, or nothing when it needs none.
absl::StatusOr<std::optional<CalibrationNeed>> CalibrationNeeds(const Recipe& recipe);

// Returns whether the recipe codes pages of a model that norms its keys, as `kvstow(keys=2)` does.
bool IsForNormedKeys(const Recipe& recipe);

// Returns the recipe with the calibration of this id (in hexadecimal) named in full, when the
// recipe leaves the calibration open or gives the first digits of this id. Returns other recipes as
// they are.
absl::StatusOr<Recipe> NameCalibration(const Recipe& recipe, absl::string_view id);

// Returns the layers of a run: the recipe's run(layers), the `run` of its calibrated op, or else as
// many as have about 1 MiB of raw bytes in a full page. At least one, at most all. Fails with
// INVALID_ARGUMENT when the recipe asks for so few that a page has more than kMaxSegments.
absl::StatusOr<uint32_t> LayersPerRun(const Recipe& recipe, const KvSpec& spec, uint32_t levels);

// Returns the layers that are best fetched together: those of a run for ops that code a run as a
// whole (kCalibrated, kRunCodec), where a layer may need the others, else 1.
absl::StatusOr<uint32_t> LayersTogether(const Recipe& recipe, const KvSpec& spec, uint32_t levels);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CODEC_RUN_CODECS_H_
