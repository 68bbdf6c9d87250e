// nuq(bits,outliers,first,last,blob): KVQuant (arXiv 2401.18079), a calibrated codec at a fixed
// rate.
//
//   K, before RoPE: a channel's range [lo, hi] is calibrated; values outside it are outliers
//   V: each token has its own range. The round(outliers / 2 W) least and as many greatest of its W
//      values lie outside it and are outliers; lo and hi are stored in fp16
//   u = (x - (lo + hi) / 2) / ((hi - lo) / 2), q = the nearest entry of the layer's codebook,
//   x' = c[q] (hi - lo) / 2 + (lo + hi) / 2; outliers come back in fp16
//
//   bits      2..4 (3); one calibration has the codebooks of all three
//   outliers  0..0.2 (0.01), the share of values outside; the calibration must be made for the same
//   first     tokens at the start of a text that stay raw (1)
//   last      tokens at the end of a page that are (0)
//
// A codebook has 2^bits entries for K, or V, of one layer. k-means of u gives it, weighted by the
// square of hi - lo and, with statistics of the model, by what the model feels of an error in that
// channel. The paper takes the diagonal of the Fisher information, whose gradients are not at hand
// here.
//
// Body (vector_run_codec.h) of the coded tokens, for K and then V of each layer: V's lo of all
// tokens, V's hi (fp16); the codes, bit-packed; outliers (outlier_values.h). Section `nuq`:
// docs/FORMAT.md. The bytes are the same on every SIMD target.
#ifndef KVSTOW_KERNELS_METHODS_NUQ_RUN_CODEC_H_
#define KVSTOW_KERNELS_METHODS_NUQ_RUN_CODEC_H_

#include "kernels/calibration/calibration.h"
#include "kernels/calibration/calibration_fit.h"
#include "kernels/methods/run_codec.h"
#include "kernels/recipe/op_arguments.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<const RunCodec>> MakeNuqRunCodec(
    const OpArguments& arguments, const KvSpec& spec,
    std::shared_ptr<const Calibration> calibration);

absl::StatusOr<std::shared_ptr<const CalibratedTables>> ParseNuqTables(
    const CalibrationShape& shape, std::span<const uint8_t> body);

absl::StatusOr<std::unique_ptr<CalibrationFit>> StartNuqFit(const KvSpec& spec,
                                                            const OpArguments& arguments,
                                                            const ModelStats& stats);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_NUQ_RUN_CODEC_H_
