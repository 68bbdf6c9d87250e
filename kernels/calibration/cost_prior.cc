#include "kernels/calibration/cost_prior.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>

namespace kvstow {
namespace {

constexpr double kNats = 0.14;  // of errors as large as K and V themselves, where u is 1
constexpr double kNormedK = 1, kNormedV = 0.4;  // nats of such errors where keys pass a norm
constexpr double kMostFelt = 16;                // of u
constexpr double kLeastShare = 1e-3;            // of a channel's variance in the mean of its head
constexpr double kLeastVariance = 1e-12;

// The channels of a head, none far below their mean: one that stands still may move later.
std::vector<double> Floored(std::span<const double> variances) {
  const double mean = std::accumulate(variances.begin(), variances.end(), 0.0) /
                      static_cast<double>(variances.size());
  std::vector<double> out(variances.begin(), variances.end());
  for (double& v : out) v = std::max({v, kLeastShare * mean, kLeastVariance});
  return out;
}

double SumOf(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

double SumOfSquares(std::span<const double> values) {
  return std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
}

}  // namespace

std::vector<double> HeadsFelt(const KvSpec& spec, std::span<const double> variances) {
  const size_t width = variances.size() / spec.layers;
  std::vector<double> felt;
  for (uint32_t layer = 0; layer < spec.layers; ++layer) {
    for (uint32_t head = 0; head < spec.kv_heads; ++head) {
      const std::vector<double> k = Floored(
          variances.subspan(layer * width + size_t{head} * spec.head_dim_k, spec.head_dim_k));
      felt.push_back(spec.head_dim_v == 0 ? 1 : SumOfSquares(k) / SumOf(k));
    }
  }
  const double mean = SumOf(felt) / static_cast<double>(felt.size());
  for (double& u : felt) u = std::clamp(u / mean, 1 / kMostFelt, kMostFelt);
  return felt;
}

std::vector<double> CostPrior(const KvSpec& spec, std::span<const double> variances,
                              bool normed_keys) {
  const size_t heads = spec.kv_heads, k_dim = spec.head_dim_k, v_dim = spec.head_dim_v;
  const size_t width = heads * (k_dim + v_dim);
  const std::vector<double> felt = HeadsFelt(spec, variances);
  const auto all_heads = static_cast<double>(felt.size());
  const bool normed = normed_keys && v_dim > 0;
  std::vector<double> costs(variances.size());
  for (size_t layer = 0; layer < spec.layers; ++layer) {
    const auto of_layer = variances.subspan(layer * width, width);
    double* const out = costs.data() + layer * width;
    const double spread_v =
        v_dim == 0 ? 1
                   : SumOf(Floored(of_layer.subspan(heads * k_dim))) / static_cast<double>(heads);
    for (size_t head = 0; head < heads; ++head) {
      const double u = felt[layer * heads + head];
      const std::vector<double> k = Floored(of_layer.subspan(head * k_dim, k_dim));
      std::vector<double> weights(k_dim, 1);
      if (v_dim > 0 && !normed)
        std::ranges::transform(k, weights.begin(), [](double v) { return std::sqrt(v); });
      const double cost_k = (normed ? kNormedK * u : kNats * u * u) / all_heads;
      const double cost_v = (normed ? kNormedV : kNats * u) / all_heads;
      const double k_unit = cost_k / SumOf(k) * static_cast<double>(k_dim) / SumOf(weights);
      for (size_t c = 0; c < k_dim; ++c) out[head * k_dim + c] = k_unit * weights[c];
      std::fill_n(out + heads * k_dim + head * v_dim, v_dim, cost_v / spread_v);
    }
  }
  return costs;
}

}  // namespace kvstow
