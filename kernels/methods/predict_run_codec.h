// predict(bits,run,first,last,blob): AQUA-KV (arXiv 2501.19392). It predicts every layer from the
// one before it, and quantizes the rest: what the prediction misses.
//
//   K of a run's first layer: its mean        K of layer l: linear in K' of layer l - 1
//   V of a run's first layer: linear in K'    V of layer l: linear in K' of layer l and V' of l - 1
//
// K is taken before RoPE. Primed values are decoded ones, on which the predictors are trained. The
// rest of a token's slab is cut into powers of two, at most 1,024 and the largest first. Each block
// is rotated (hadamard) and coded as its length over sqrt(n) (fp16) and an entry of the Gaussian
// Lloyd-Max codebook for each value. The paper's vector codebook of two dimensions (HIGGS) has a
// tenth less error at 2 bits.
//
//   bits   2..4 (2); K and V of a run's first layer have 4
//   run    layers that are predicted from each other; 1024 = all of any model, as published
//   first  tokens at the start of a text that stay raw (4)
//   last   tokens at the end of a page that are (0; the paper keeps 128 recent ones of a sequence)
//
// Body (vector_run_codec.h) of the coded tokens: K and then V of each layer. Each block has the
// lengths of all tokens (fp16), then their codes, bit-packed. A layer cannot be decoded without
// those before it in its run. Coding is deterministic within one SIMD target. Between targets
// predictions, and so a code here and there, differ by rounding.
#ifndef KVSTOW_KERNELS_METHODS_PREDICT_RUN_CODEC_H_
#define KVSTOW_KERNELS_METHODS_PREDICT_RUN_CODEC_H_

#include "kernels/calibration/calibration.h"
#include "kernels/calibration/calibration_fit.h"
#include "kernels/methods/run_codec.h"
#include "kernels/recipe/op_arguments.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<const RunCodec>> MakePredictRunCodec(
    const OpArguments& arguments, const KvSpec& spec,
    std::shared_ptr<const Calibration> calibration);

// Section `predict`: docs/FORMAT.md.
absl::StatusOr<std::shared_ptr<const CalibratedTables>> ParsePredictTables(
    const CalibrationShape& shape, std::span<const uint8_t> body);

absl::StatusOr<std::unique_ptr<CalibrationFit>> StartPredictFit(const KvSpec& spec,
                                                                const OpArguments& arguments,
                                                                const ModelStats& stats);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_PREDICT_RUN_CODEC_H_
