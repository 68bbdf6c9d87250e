// pca(bits,run,first,last,blob): KVTC (NVIDIA, arXiv 2511.01815), a calibrated transform code.
//
// It projects K before RoPE of all layers of a run, less its mean, on its principal components; V
// likewise, apart. A plan (component_plan.h) says which groups of components get 0, 2, 4 or 8 bits.
// DEFLATE codes the result.
//
//   bits   .05..8 that the plan takes for each value before DEFLATE, for K and for V (1).
//          Calibrations have plans for 2, 1, .5 and the bits of the recipe they are made for
//   run    layers that are transformed together; 1024 = all of any model, as published
//   first  tokens at the start of a text that stay raw (4)
//   last   tokens at the end of a page that are (0). The paper keeps 128 recent ones of a sequence;
//          a page does not know whether it is the last, so here it is off
//
// Two more things are unlike the paper. A Lagrange multiplier meets the plan's budget (the paper's
// dynamic program counts bits), and components are measured on a sample of tokens that the basis
// has seen.
//
// Body (vector_run_codec.h) of the coded tokens: for K and then V (none when head_dim_v is 0) the
// size of the stream (uint32), and a zlib stream of EncodeComponents' bytes. All tokens of a page
// are decoded together, and all layers of a run. Coding is deterministic within one SIMD target and
// one version of zlib. Decoded values differ between SIMD targets by rounding only.
#ifndef KVSTOW_KERNELS_METHODS_PCA_RUN_CODEC_H_
#define KVSTOW_KERNELS_METHODS_PCA_RUN_CODEC_H_

#include "kernels/calibration/calibration.h"
#include "kernels/calibration/calibration_fit.h"
#include "kernels/methods/component_plan.h"
#include "kernels/methods/run_codec.h"
#include "kernels/recipe/op_arguments.h"

namespace kvstow {

// K or V of one run, as it is fitted and stored: an orthonormal basis, one component a row.
struct PcaPartData {
  std::vector<float> mean;           // [width]
  std::vector<float> scales;         // [rank]
  std::vector<uint16_t> halves;      // [rank, width], each row times its scale
  std::vector<ComponentPlan> plans;  // one for each of PcaData::bits
};
struct PcaData {
  std::vector<float> bits;  // bits a value
  std::vector<PcaPartData>
      parts;  // K of the first run, its V if there is one, K of the second, ...
};
// Section `pca`: docs/FORMAT.md.
std::string SerializePca(const PcaData& data);

absl::StatusOr<std::shared_ptr<const CalibratedTables>> ParsePcaTables(
    const CalibrationShape& shape, std::span<const uint8_t> body);

absl::StatusOr<std::unique_ptr<const RunCodec>> MakePcaRunCodec(
    const OpArguments& arguments, const KvSpec& spec,
    std::shared_ptr<const Calibration> calibration);

// Starts the fit (pca_fit.cc). Two passes: means; second moments and a sample. Memory: width^2
// doubles for K and for V of each run. Time grows with tokens * width^2, and once with width^2 *
// rank.
absl::StatusOr<std::unique_ptr<CalibrationFit>> StartPcaFit(const KvSpec& spec,
                                                            const OpArguments& arguments,
                                                            const ModelStats& stats);
absl::StatusOr<double> ReadPcaBits(const OpArguments& arguments);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_PCA_RUN_CODEC_H_
