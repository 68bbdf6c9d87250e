#include "kernels/calibration/token_slopes.h"

#include <algorithm>
#include <cmath>

#include "kernels/calibration/key_slopes.h"
#include "kernels/calibration/token_importance.h"

namespace kvstow {
namespace {

constexpr float kMetricPower = 1 - kDefaultFocus;  // what the metrics' weights leave
constexpr double kMostLog = 40;  // slopes of another model may say anything; sums stay finite

}  // namespace

TokenSlopes::TokenSlopes(const KvSpec& spec, const ModelStats& stats, LayerRange layers) {
  if (!stats.has_slopes()) return;
  const size_t k = size_t{spec.kv_heads} * spec.head_dim_k,
               v = size_t{spec.kv_heads} * spec.head_dim_v;
  width_ = layers.count * (k + v);
  for (size_t l = 0; l < layers.count; ++l) {
    std::vector<float>& slopes = layers_.emplace_back(width_);
    const size_t layer = layers.first + l;
    std::copy_n(stats.slope_k.begin() + layer * k, k, slopes.begin() + l * k);
    std::copy_n(stats.slope_v.begin() + layer * v, v, slopes.begin() + layers.count * k + l * v);
  }
}

TokenSlopes::TokenSlopes(const KvSpec& spec, uint32_t layers, const FirstMoments& moments) {
  if (spec.head_dim_v == 0) return;
  const size_t k = size_t{spec.kv_heads} * spec.head_dim_k,
               v = size_t{spec.kv_heads} * spec.head_dim_v;
  width_ = layers * (k + v);
  const std::vector<float> means = moments.Mean();
  std::vector<double> variances(k);
  for (size_t first = 0; first < layers * k; first += k) {
    for (size_t c = 0; c < k; ++c) variances[c] = moments.Variance(first + c);
    const std::vector<float> of_layer =
        KeySlopes(spec.kv_heads, std::span(means).subspan(first, k), variances);
    std::ranges::copy(of_layer,
                      layers_.emplace_back(width_).begin() + static_cast<ptrdiff_t>(first));
  }
}

std::vector<float> TokenSlopes::Sensitivity(std::span<const float> x) const {
  std::vector<float> out(x.size() / width_);
  FirstMoments moments(width_);
  moments.Add(x.data(), out.size());
  const std::vector<float> mean = moments.Mean();
  for (const std::vector<float>& slopes : layers_) {
    for (size_t t = 0; t < out.size(); ++t) {
      double log = 0;
      for (size_t i = 0; i < width_; ++i) log += double{slopes[i]} * (x[t * width_ + i] - mean[i]);
      out[t] += static_cast<float>(std::exp(std::clamp(log, -kMostLog, kMostLog)));
    }
  }
  double sum = 0;
  for (const float value : out) sum += std::pow(value, kMetricPower);
  const double unit = sum / static_cast<double>(out.size());
  for (float& value : out) value = static_cast<float>(value / unit);
  return out;
}

}  // namespace kvstow
