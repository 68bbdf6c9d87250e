// Fits a calibration (calibration.h) to pages of KV in some passes over the same pages.
// codec/calibrate.h starts a fit. This file has the interface and the parts that all fits
// share.
//
// Not thread-safe. Errors: INVALID_ARGUMENT for pages or statistics that do not fit the spec, or
// that hold NaN or Inf; FAILED_PRECONDITION for too few tokens or a call out of order.
#ifndef KVSTOW_KERNELS_CALIBRATION_CALIBRATION_FIT_H_
#define KVSTOW_KERNELS_CALIBRATION_CALIBRATION_FIT_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/calibration/calibration.h"
#include "kernels/page/page_to_encode.h"

namespace kvstow {

// How a model feels an error in its KV. All empty = not known.
struct ModelStats {
  // [layers, kv_heads, d, d], symmetric: x' M x is the cost of an error x of K before RoPE, or of
  // V.
  std::vector<float> metric_k, metric_v;
  // [layers, kv_heads]: the square root of the damage (a KL divergence, in nats) that noise of unit
  // size under the metric does in that slab alone.
  std::vector<float> gain_k, gain_v;
  // [tokens, layers] of all pages in the order in which they are added: the cost of errors of that
  // token in that layer, in any unit; 0 = not known. Tokens are only compared within their page.
  // May be empty by itself.
  std::vector<float> sensitivity;
};

// Appends a matrix of rows of `width` in fp16. Each row is divided by a scale of its own: its
// largest magnitude, or 1 for a row of zeros.
void HalveRows(std::span<const float> rows, size_t width, std::vector<float>& scales,
               std::vector<uint16_t>& halves);
// Fails with INVALID_ARGUMENT when the spec is not valid or FP8, or when the statistics are neither
// empty nor of this spec.
absl::Status CheckFit(const KvSpec& spec, const ModelStats& stats);

class CalibrationFit {
 public:
  virtual ~CalibrationFit() = default;

  virtual int passes() const = 0;
  virtual absl::Status Add(const PageToEncode& page) = 0;
  virtual absl::Status EndPass() = 0;
  // Returns the blob. Call it once, after all passes.
  virtual absl::StatusOr<std::string> Finish() = 0;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CALIBRATION_CALIBRATION_FIT_H_
