// Makes the codec of a recipe.
//
// A free function: thread-safe.
#ifndef KVSTOW_KERNELS_CODEC_MAKE_CODEC_H_
#define KVSTOW_KERNELS_CODEC_MAKE_CODEC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/codec/calibration_store.h"
#include "kernels/codec/codec.h"
#include "kernels/page/page.h"
#include "kernels/recipe/recipe.h"

namespace kvstow {

// Fails with INVALID_ARGUMENT when the recipe does not fit (an unknown op, an argument out of
// range, a lossy recipe for FP8) or when several calibrations fit it. Fails with
// FAILED_PRECONDITION when the recipe needs a calibration that `calibrations` lacks; the codec
// keeps the one it found. A group that is longer than its axis is the axis; a last group may be
// shorter.
//
// When the recipe leaves the statistics of queries open and `calibrations` lacks them, they come
// with each page (PageToEncode::queries). Other codecs do not read those of the page. A recipe may
// leave a choice to each page: its step (rate_codec.h), the axis of K's groups (key_groups.h).
absl::StatusOr<std::shared_ptr<const Codec>> MakeCodec(
    const Recipe& recipe, const KvSpec& spec,
    const CalibrationStore& calibrations = NoCalibrations());

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CODEC_MAKE_CODEC_H_
