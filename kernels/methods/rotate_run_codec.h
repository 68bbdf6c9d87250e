// rotate(bits,group,first,last,blob): OSCAR (arXiv 2605.17757), a calibrated rotation of each head
// for integers of few bits.
//
//   y = x R, R = U P H: U has the eigenvectors of the metric by which attention weighs the head's
//   errors, the largest first. P sorts them by bit reversal. H is the Hadamard transform, in blocks
//   of powers of two. So every channel gets its share of what matters. Affine codes of y follow,
//   whose range is clipped.
//
//   K, before RoPE: U of the metric that --model-stats give (of queries), else of K's covariance
//   V: U of V's covariance; the paper weighs tokens by attention, which pages do not tell
//   clip: the share of a group's range, about its middle, that is coded. K and V of a layer have
//   one each, the one with the least squared error on a sample
//
//   bits   1..8 (2)
//   group  1..4096 channels of a head vector share a minimum and a step (128)
//   first  tokens at the start of a text that stay raw (4)
//   last   tokens at the end of a page that are (0)
//
// Body (vector_run_codec.h) of the coded tokens, for K and then V: the steps of all groups (fp16),
// their minima (fp16), codes, bit-packed, as affine's. Section `rotate`: docs/FORMAT.md. Coding is
// deterministic within one SIMD target.
#ifndef KVSTOW_KERNELS_METHODS_ROTATE_RUN_CODEC_H_
#define KVSTOW_KERNELS_METHODS_ROTATE_RUN_CODEC_H_

#include "kernels/calibration/calibration.h"
#include "kernels/calibration/calibration_fit.h"
#include "kernels/methods/run_codec.h"
#include "kernels/recipe/op_arguments.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<const RunCodec>> MakeRotateRunCodec(
    const OpArguments& arguments, const KvSpec& spec,
    std::shared_ptr<const Calibration> calibration);

absl::StatusOr<std::shared_ptr<const CalibratedTables>> ParseRotateTables(
    const CalibrationShape& shape, std::span<const uint8_t> body);

absl::StatusOr<std::unique_ptr<CalibrationFit>> StartRotateFit(const KvSpec& spec,
                                                               const OpArguments& arguments,
                                                               const ModelStats& stats);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_ROTATE_RUN_CODEC_H_
