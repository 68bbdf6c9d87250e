// Fits a calibration (calibration.h) to pages of KV in some passes over the same pages;
// calibration_methods.h starts one. This file has the interface and the fit of the joint transform,
// in four passes: means, then second moments, then what the coefficients look like, then which
// tokens the model feels (token_importance.h; nothing to do without sensitivities).
//
// K is taken before RoPE; the first kFirstTokens tokens of a text are left out. Vectors are scaled
// to what the model feels (ModelStats) or, without, each (K|V, layer, head) to its own spread; then
// a principal component analysis of a run's K and V together. Of the components those are kept that
// are non-zero in more than one token of a thousand at the finest step.
//
// Memory: some (values a token of a run)^2 doubles for each run, and vectors of one page; it does
// not grow with the number of pages. Time grows with tokens * width, and once with width^3 a run.
//
// Deterministic for one SIMD target. Not thread-safe. Errors: INVALID_ARGUMENT for pages or
// statistics that do not fit the spec, or that hold NaN or Inf; FAILED_PRECONDITION when there were
// too few tokens, or a call is out of order.
#ifndef KVSTOW_KERNELS_CALIBRATION_FIT_H_
#define KVSTOW_KERNELS_CALIBRATION_FIT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/calibration.h"
#include "kernels/codec.h"

namespace kvstow {

// What a model feels of an error in its KV. All empty = not known.
struct ModelStats {
  // [layers, kv_heads, d, d], symmetric: x' M x is the cost of an error x of K before RoPE, or of
  // V.
  std::vector<float> metric_k, metric_v;
  // [layers, kv_heads]: the square root of the damage (a KL divergence, in nats) that noise of unit
  // size under the metric does in that slab alone.
  std::vector<float> gain_k, gain_v;
  // [tokens, layers] of all pages in the order in which they are added: what errors of that token
  // in that layer cost, in any unit; 0 = not known. Tokens of one page are compared with each other
  // alone. May be empty by itself.
  std::vector<float> sensitivity;
};

struct CalibrationOptions {
  uint32_t layers_per_run = 1;
  double finest_step = 1;  // the smallest that pages will be coded with
};

// A matrix of rows of `width` in fp16, each row over a scale of its own: its largest magnitude, or
// 1 for a row of zeros. Appends.
void HalveRows(std::span<const float> rows, size_t width, std::vector<float>& scales,
               std::vector<uint16_t>& halves);
// The vectors of the page's tokens beyond the first of a text (joint_vectors.h), for a fit; `out`
// may end up empty. INVALID_ARGUMENT when the page does not fit the spec, or holds NaN or Inf.
absl::Status GatherToCalibrate(const KvSpec& spec, LayerRange layers, const PageToEncode& page,
                               std::vector<float>& out);
// INVALID_ARGUMENT when pages of this spec are not valid or are FP8, or when the statistics are
// neither empty nor of this spec.
absl::Status CheckFit(const KvSpec& spec, const ModelStats& stats);

class CalibrationFit {
 public:
  virtual ~CalibrationFit() = default;

  // Of the joint transform.
  static absl::StatusOr<std::unique_ptr<CalibrationFit>> Start(const KvSpec& spec,
                                                               const CalibrationOptions& options,
                                                               const ModelStats& stats);

  virtual int passes() const = 0;
  virtual absl::Status Add(const PageToEncode& page) = 0;
  virtual absl::Status EndPass() = 0;
  // The blob, after all passes; once.
  virtual absl::StatusOr<std::string> Finish() = 0;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CALIBRATION_FIT_H_
