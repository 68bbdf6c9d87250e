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
#include "kernels/calibration/model_stats.h"
#include "kernels/page/page_to_encode.h"

namespace kvstow {

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
