// waterfill(bits,first,last,blob): AATC (arXiv 2608.14191), a calibrated transform of each head at
// a fixed rate.
//
//   u = E (x - mean) / sigma: the head's principal components, each over its spread. The model's
//   sensitivity whitens them (calibration_basis.h); without --model-stats the head's spread
//   s = fp16(max |u|) of a token, q = clip(floor((u / s + 1) 2^(b - 1)), 0, 2^b - 1)
//   u' = s c_b[q], x' = mean + D (sigma u')
//
// Component i has b_i = 0..8 bits. Reverse water-filling shares them out over K and V of all layers
// and heads at once: the least total error, in the whitened units, for the bits that there are. c_b
// are the fitted means of the values in each cell.
//
//   bits   0.25..8 a value, scales included (2.75); the calibration must be made for the same
//   first  tokens at the start of a text that stay raw (4)
//   last   tokens at the end of a page that are (0; the paper keeps 128 recent ones of a sequence)
//
// Body (vector_run_codec.h) of the coded tokens: for K and then V, for each head that has
// components with bits: s of all tokens (fp16), then for each component the codes of all tokens,
// bit-packed. Section `waterfill`: docs/FORMAT.md. Coding is deterministic within one SIMD target.
#ifndef KVSTOW_KERNELS_METHODS_WATERFILL_RUN_CODEC_H_
#define KVSTOW_KERNELS_METHODS_WATERFILL_RUN_CODEC_H_

#include "kernels/calibration/calibration.h"
#include "kernels/calibration/calibration_fit.h"
#include "kernels/methods/run_codec.h"
#include "kernels/recipe/op_arguments.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<const RunCodec>> MakeWaterfillRunCodec(
    const OpArguments& arguments, const KvSpec& spec,
    std::shared_ptr<const Calibration> calibration);

absl::StatusOr<std::shared_ptr<const CalibratedTables>> ParseWaterfillTables(
    const CalibrationShape& shape, std::span<const uint8_t> body);

absl::StatusOr<std::unique_ptr<CalibrationFit>> StartWaterfillFit(const KvSpec& spec,
                                                                  const OpArguments& arguments,
                                                                  const ModelStats& stats);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_WATERFILL_RUN_CODEC_H_
