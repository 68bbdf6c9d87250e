#include "kernels/methods/divergence_meter.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "kernels/calibration/cost_prior.h"
#include "kernels/calibration/page_end.h"
#include "kernels/methods/joint_vectors.h"

namespace kvstow {
namespace {

constexpr double kLeastEntropy = 0.1, kMostEntropy = 8;  // over its mean
constexpr double kGuessedPower = 1.27;                   // where nothing is known of the model
constexpr double kPowerOfNormedKeys = 1.1;               // the same, where keys pass a norm

double ToThePower(double divergence, double power) {
  return kPowerNats * std::pow(divergence / kPowerNats, power);
}

}  // namespace

DivergenceMeter::DivergenceMeter(const KvSpec& spec, const ModelStats& stats)
    : spec_(spec),
      width_(size_t{spec.kv_heads} * (spec.head_dim_k + spec.head_dim_v)),
      moments_(spec.layers, FirstMoments(width_)),
      errors_of_columns_(spec.layers * width_),
      end_weights_(EndWeights(spec.page_tokens)),
      normed_keys_(stats.normed_keys),
      entropy_(stats.entropy),
      power_(stats.power) {
  if (stats.empty()) {
    power_ = normed_keys_ ? kPowerOfNormedKeys : kGuessedPower;
    return;
  }
  std::vector<float> row;
  for (uint32_t layer = 0; layer < spec.layers; ++layer) {
    slopes_.emplace_back(spec, stats, LayerRange{layer, 1});
    size_t column = 0;
    for (const Part part : {Part::kK, Part::kV}) {
      const size_t dim = part == Part::kK ? spec.head_dim_k : spec.head_dim_v;
      const std::vector<float>& metric = part == Part::kK ? stats.metric_k : stats.metric_v;
      const std::vector<float>& gain = part == Part::kK ? stats.gain_k : stats.gain_v;
      const size_t first = size_t{layer} * spec.kv_heads;
      for (size_t i = first; dim > 0 && i < first + spec.kv_heads; ++i, column += dim) {
        Head head{.first = column, .size = dim, .metric = PackedMatrix(dim, dim)};
        for (size_t r = 0; r < dim; ++r) {
          const float* const from = metric.data() + (i * dim + r) * dim;
          row.assign(from, from + dim);
          for (float& x : row) x *= gain[i] * gain[i] / static_cast<float>(dim);
          head.metric.SetRow(r, row);
        }
        heads_.push_back(std::move(head));
      }
    }
  }
}

absl::Status DivergenceMeter::Add(const PageToEncode& page, std::span<const uint8_t> decoded) {
  PageToEncode other = page;
  other.raw = decoded;
  size_t tokens = 0;
  double cost = 0;
  for (uint32_t layer = 0; layer < spec_.layers; ++layer) {
    KVSTOW_RETURN_IF_ERROR(GatherToCalibrate(spec_, {layer, 1}, page, came_));
    KVSTOW_RETURN_IF_ERROR(GatherToCalibrate(spec_, {layer, 1}, other, left_));
    tokens = came_.size() / width_;
    if (!heads_.empty()) {
      cost += CostOf(layer, tokens);
      continue;
    }
    moments_[layer].Add(came_.data(), tokens);
    const std::vector<float> felt = Felt(layer, tokens);
    for (size_t i = 0; i < came_.size(); ++i) {
      const double error = double{left_[i]} - came_[i];
      errors_of_columns_[layer * width_ + i % width_] += felt[i / width_] * error * error;
    }
  }
  tokens_ += tokens;
  cost_ += cost * EntropyFactor(tokens);
  return absl::OkStatus();
}

std::vector<float> DivergenceMeter::Felt(uint32_t layer, size_t tokens) const {
  std::vector<float> felt(tokens, 1);
  if (heads_.empty()) {
    felt = GuessFelt(layer, tokens);
  } else if (!slopes_[layer].empty() && tokens > 0) {
    felt = slopes_[layer].Sensitivity(came_);
  }
  const auto end = std::span(end_weights_).last(tokens);
  for (size_t t = 0; t < tokens; ++t) felt[t] *= static_cast<float>(end[t]);
  return felt;
}

std::vector<float> DivergenceMeter::GuessFelt(uint32_t layer, size_t tokens) const {
  const TokenSlopes slopes(spec_, 1, moments_[layer]);
  if (slopes.empty() || tokens == 0) return std::vector<float>(tokens, 1);
  std::vector<float> felt = slopes.Sensitivity(came_);
  const float mean = std::accumulate(felt.begin(), felt.end(), 0.0F) / static_cast<float>(tokens);
  for (float& one : felt) one /= mean;
  return felt;
}

double DivergenceMeter::EntropyFactor(size_t tokens) const {
  if (entropy_.empty() || tokens == 0) return 1;
  const size_t width = entropy_.size() - 1;
  double sum = 0;
  for (size_t t = 0; t < tokens; ++t) {
    double entropy = entropy_[width];
    for (size_t i = 0; i < width; ++i) entropy += double{entropy_[i]} * came_[t * width + i];
    sum += std::max(entropy, 0.0);
  }
  return std::sqrt(std::clamp(sum / static_cast<double>(tokens), kLeastEntropy, kMostEntropy));
}

double DivergenceMeter::CostOf(uint32_t layer, size_t tokens) {
  const size_t heads = heads_.size() / spec_.layers;
  double cost = 0;
  const std::vector<float> felt = Felt(layer, tokens);
  for (const Head& head : std::span(heads_).subspan(layer * heads, heads)) {
    errors_.resize(tokens * head.size);
    products_.resize(errors_.size());
    for (size_t i = 0; i < errors_.size(); ++i) {
      const size_t at = i / head.size * width_ + head.first + i % head.size;
      errors_[i] = left_[at] - came_[at];
    }
    MultiplyRows(errors_.data(), tokens, head.metric, {0, head.size}, products_.data(), head.size);
    for (size_t i = 0; i < errors_.size(); ++i) {
      cost += double{felt[i / head.size]} * errors_[i] * products_[i];
    }
  }
  return cost;
}

double DivergenceMeter::Divergence() const {
  if (tokens_ == 0) return 0;
  const auto tokens = static_cast<double>(tokens_);
  if (!heads_.empty()) return ToThePower(std::max(cost_, 0.0) / tokens, power_);
  std::vector<double> variances;
  for (const FirstMoments& moments : moments_) {
    for (size_t c = 0; c < width_; ++c) variances.push_back(moments.Variance(c));
  }
  const std::vector<double> costs = CostPrior(spec_, variances, normed_keys_);
  const double sum =
      std::inner_product(costs.begin(), costs.end(), errors_of_columns_.begin(), 0.0);
  return ToThePower(sum / tokens, power_);
}

}  // namespace kvstow
