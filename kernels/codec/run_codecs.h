// The run codec (run_codec.h) of a recipe, and what its recipe says of runs and calibrations.
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

// `spec` needs no more than a page header gives; `calibration` is null when CalibrationNeeds is
// nothing. INVALID_ARGUMENT names the recipe and what is
// wrong.
absl::StatusOr<std::unique_ptr<const RunCodec>> MakeRunCodec(
    const Recipe& recipe, const KvSpec& spec, std::shared_ptr<const Calibration> calibration);

// What the recipe asks for of a calibration; nothing when it needs none.
absl::StatusOr<std::optional<CalibrationNeed>> CalibrationNeeds(const Recipe& recipe);

// The same recipe with the calibration of this id (in hexadecimal) named in full, where it leaves
// open which one, or gives the first digits of this one. A recipe that needs none stays as it is.
absl::StatusOr<Recipe> NameCalibration(const Recipe& recipe, absl::string_view id);

// Layers of a run: the recipe's run(layers), else as many as have about 1 MiB of raw bytes in a
// full page. At least one, at most all; never so few that a page has more than kMaxSegments.
absl::StatusOr<uint32_t> LayersPerRun(const Recipe& recipe, const KvSpec& spec, uint32_t levels);

// Layers that are best fetched together: a run's, where decoding any layer of it takes the others
// too, else 1.
absl::StatusOr<uint32_t> LayersTogether(const Recipe& recipe, const KvSpec& spec, uint32_t levels);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CODEC_RUN_CODECS_H_
