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
  const size_t heads = size_t{spec.layers} * spec.kv_heads;
  const auto fits = [&](const std::vector<float>& metric, const std::vector<float>& gain,
                        size_t dim) {
    return metric.size() == heads * dim * dim && gain.size() == (dim > 0 ? heads : 0) &&
           std::all_of(metric.begin(), metric.end(), [](float x) { return std::isfinite(x); }) &&
           std::all_of(gain.begin(), gain.end(), [](float x) { return std::isfinite(x) && x > 0; });
  };
  const bool sensitivity = stats.sensitivity.size() % spec.layers == 0 &&
                           std::all_of(stats.sensitivity.begin(), stats.sensitivity.end(),
                                       [](float s) { return std::isfinite(s) && s >= 0; });
  if (!sensitivity) {
    return absl::InvalidArgumentError(
        "the model's sensitivities are not finite numbers for every layer of a token");
  }
  const bool none = stats.metric_k.empty() && stats.metric_v.empty() && stats.gain_k.empty() &&
                    stats.gain_v.empty();
  if (none || (fits(stats.metric_k, stats.gain_k, spec.head_dim_k) &&
               fits(stats.metric_v, stats.gain_v, spec.head_dim_v))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "the model's statistics do not fit the pages' layers, KV heads and head_dim, or hold a gain "
      "that is not positive");
}

}  // namespace kvstow
