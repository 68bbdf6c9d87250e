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

// INVALID_ARGUMENT when the recipe does not fit: an unknown op, an argument out of range, a lossy
// recipe for FP8. A group that is longer than its axis is the axis; a last group may be shorter.
// FAILED_PRECONDITION when the recipe needs a calibration that `calibrations` lacks; the codec
// keeps the one it found. Statistics of queries that the recipe leaves open and that `calibrations`
// lacks come with each page (PageToEncode::queries), which others do not read. A recipe may leave
// to each page what it is coded by: its step (rate_codec.h), the axis of K's groups (key_groups.h).
absl::StatusOr<std::shared_ptr<const Codec>> MakeCodec(
    const Recipe& recipe, const KvSpec& spec,
    const CalibrationStore& calibrations = NoCalibrations());

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CODEC_MAKE_CODEC_H_
