#include "kernels/calibration/calibration_fit.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/page/half.h"

namespace kvstow {

void HalveRows(std::span<const float> rows, size_t width, std::vector<float>& scales,
               std::vector<uint16_t>& halves) {
  for (size_t first = 0; first < rows.size(); first += width) {
    float scale = 0;
    for (const float x : rows.subspan(first, width)) scale = std::max(scale, std::abs(x));
    if (scale == 0) scale = 1;
    scales.push_back(scale);
    for (const float x : rows.subspan(first, width)) halves.push_back(FloatToHalf(x / scale));
  }
}

absl::Status CheckFit(const KvSpec& spec, const ModelStats& stats) {
  KVSTOW_RETURN_IF_ERROR(Validate(spec));
  if (IsFloat8(spec.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat(DTypeName(spec.dtype), " pages cannot be calibrated on"));
  }
  return CheckModelStats(ShapeFor(spec, 1), stats);
}

}  // namespace kvstow
