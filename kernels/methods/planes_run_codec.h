// planes(step,levels): page statistics and the plane coder. An embedded code without calibration,
// source: our own; docs/CODECS.md has the formula and what was measured.
//
// K loses its rotary positions; every channel loses its mean over the page. Values are quantized
// with a full dead zone, `step` times the slab's rms spread at the finest level, twice that a level
// coarser, and coded by static tables picked by the spread of the channel. The first tokens of a
// text (positions below kPlainTokens) lie far from all others: they are kept apart, in `firstbits`
// (first_tokens.h).
//
// Body of the base level: those first tokens, the statistics (page_statistics.h), the plane
// coder's base. Bodies of the other levels are the plane coder's. Values beyond fp16 are
// OUT_OF_RANGE.
#ifndef KVSTOW_KERNELS_METHODS_PLANES_RUN_CODEC_H_
#define KVSTOW_KERNELS_METHODS_PLANES_RUN_CODEC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/calibration/calibration.h"
#include "kernels/methods/run_codec.h"
#include "kernels/recipe/op_arguments.h"

namespace kvstow {

inline constexpr uint64_t kPlainTokens = 4;

// step: 0.01 to 8, of the finest level; levels: 1 to 8.
absl::StatusOr<std::unique_ptr<const RunCodec>> MakePlanes(const OpArguments& arguments,
                                                           const KvSpec& spec);
// The same behind a policy that ends in `class`: each token has a class of steps, half an octave
// each, in the place of the plane coder's energy classes. The calibration is null.
absl::StatusOr<std::unique_ptr<const RunCodec>> MakeClassedPlanes(
    const OpArguments& arguments, const KvSpec& spec, std::shared_ptr<const Calibration>);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_PLANES_RUN_CODEC_H_
