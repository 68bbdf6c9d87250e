#include "kernels/importance/key_value_scores.h"

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/split_mix.h"

namespace kvstow {
namespace {

double Dot(const float* a, const float* b, uint32_t count) {
  double sum = 0;
  for (uint32_t i = 0; i < count; ++i) sum += double{a[i]} * b[i];
  return sum;
}

double Norm(const float* x, uint32_t count) { return std::sqrt(Dot(x, x, count)); }

constexpr double kLeastNorm = 1e-6;  // of a vector that is divided by its length

// The keys of one head, each of length 1, [tokens, dim].
std::vector<float> UnitKeys(const LayerView& layer, uint32_t head) {
  std::vector<float> unit(size_t{layer.tokens} * layer.dim_k);
  for (uint32_t t = 0; t < layer.tokens; ++t) {
    const float* k = layer.Key(t, head);
    const auto scale = static_cast<float>(1 / std::max(Norm(k, layer.dim_k), kLeastNorm));
    for (uint32_t c = 0; c < layer.dim_k; ++c) unit[size_t{t} * layer.dim_k + c] = k[c] * scale;
  }
  return unit;
}

// Softmax over [first, first + count) of the deviation across channels of x normalized by the
// minimum and maximum of each channel over the next `next` tokens, added to out.
void AddLagPartition(const LayerView& layer, bool keys, uint32_t head, uint32_t first,
                     uint32_t count, uint32_t next, float* out) {
  const uint32_t dim = keys ? layer.dim_k : layer.dim_v;
  const auto at = [&](uint32_t t) { return keys ? layer.Key(t, head) : layer.Value(t, head); };
  std::vector<float> low(at(first + count), at(first + count) + dim), high = low;
  for (uint32_t t = first + count + 1; t < first + count + next; ++t) {
    for (uint32_t c = 0; c < dim; ++c) {
      low[c] = std::min(low[c], at(t)[c]);
      high[c] = std::max(high[c], at(t)[c]);
    }
  }
  std::vector<double> deviation(count);
  for (uint32_t i = 0; i < count; ++i) {
    double sum = 0, squares = 0;
    for (uint32_t c = 0; c < dim; ++c) {
      const double span = std::max(high[c] - low[c], 1e-6F);
      const double x = (at(first + i)[c] - low[c]) / span;
      sum += x;
      squares += x * x;
    }
    const double mean = sum / dim;
    deviation[i] = std::sqrt(std::max(0.0, squares / dim - mean * mean));
  }
  const double most = *std::max_element(deviation.begin(), deviation.end());
  double total = 0;
  for (double& d : deviation) total += d = std::exp(d - most);
  for (uint32_t i = 0; i < count; ++i) {
    out[size_t{first + i} * layer.heads + head] += static_cast<float>(deviation[i] / total);
  }
}

}  // namespace

void PositionScore(const LayerView& layer, float* out) {
  for (uint32_t t = 0; t < layer.tokens; ++t) {
    std::fill_n(out + size_t{t} * layer.heads, layer.heads, static_cast<float>(t));
  }
}

void RandomScore(const LayerView& layer, uint32_t seed, float* out) {
  for (uint32_t t = 0; t < layer.tokens; ++t) {
    for (uint32_t h = 0; h < layer.heads; ++h) {
      const uint64_t where = SplitMix64(uint64_t{seed} << 32 | layer.layer << 10 | h);
      const uint64_t hash = SplitMix64(where ^ (layer.first_position + t));
      out[size_t{t} * layer.heads + h] = static_cast<float>(hash >> 40) * 0x1p-24F;
    }
  }
}

void KeyNormScore(const LayerView& layer, float* out) {
  for (size_t i = 0; i < size_t{layer.tokens} * layer.heads; ++i) {
    out[i] = static_cast<float>(-Norm(layer.k + i * layer.dim_k, layer.dim_k));
  }
}

void ValueNormScore(const LayerView& layer, float* out) {
  for (size_t i = 0; i < size_t{layer.tokens} * layer.heads; ++i) {
    out[i] = static_cast<float>(Norm(layer.v + i * layer.dim_v, layer.dim_v));
  }
}

void KeyDiversityScore(const LayerView& layer, float* out) {
  for (uint32_t h = 0; h < layer.heads; ++h) {
    const std::vector<float> unit = UnitKeys(layer, h);
    std::vector<double> sum(layer.dim_k);
    for (size_t i = 0; i < unit.size(); ++i) sum[i % layer.dim_k] += unit[i];
    double norm = 0;
    for (const double s : sum) norm += s * s;
    norm = std::max(std::sqrt(norm), kLeastNorm);
    for (uint32_t t = 0; t < layer.tokens; ++t) {
      double cosine = 0;
      for (uint32_t c = 0; c < layer.dim_k; ++c) {
        cosine += unit[size_t{t} * layer.dim_k + c] * sum[c];
      }
      out[size_t{t} * layer.heads + h] = static_cast<float>(-cosine / norm);
    }
  }
}

void RedundancyScore(const LayerView& layer, float above, float* out) {
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  for (uint32_t h = 0; h < layer.heads; ++h) {
    const std::vector<float> unit = UnitKeys(layer, h);
    const Eigen::Map<const Matrix> keys(unit.data(), layer.tokens, layer.dim_k);
    const Matrix cosine = keys * keys.transpose();
    for (uint32_t t = 0; t < layer.tokens; ++t) {
      double repeated = 0;
      for (uint32_t other = 0; other < layer.tokens; ++other) {
        if (other != t && cosine(t, other) > above) repeated += cosine(t, other);
      }
      out[size_t{t} * layer.heads + h] = static_cast<float>(-repeated / layer.tokens);
    }
  }
}

void LagScore(const LayerView& layer, uint32_t lag, float* out) {
  std::fill_n(out, size_t{layer.tokens} * layer.heads, 0.0F);
  uint32_t first = 0;
  for (; first + lag < layer.tokens; first += lag) {
    const uint32_t next = std::min(lag, layer.tokens - first - lag);
    for (uint32_t h = 0; h < layer.heads; ++h) {
      AddLagPartition(layer, true, h, first, lag, next, out);
      if (layer.dim_v > 0) AddLagPartition(layer, false, h, first, lag, next, out);
    }
  }
  // No softmax is above 1: the last partition comes first, in order of position.
  for (uint32_t t = first; t < layer.tokens; ++t) {
    std::fill_n(out + size_t{t} * layer.heads, layer.heads, 3 + static_cast<float>(t));
  }
}

void LeverageScore(const LayerView& layer, float* out) {
  using Matrix = Eigen::MatrixXd;
  for (uint32_t h = 0; h < layer.heads; ++h) {
    Matrix keys(layer.dim_k, layer.tokens);
    for (uint32_t t = 0; t < layer.tokens; ++t) {
      for (uint32_t c = 0; c < layer.dim_k; ++c) keys(c, t) = layer.Key(t, h)[c];
    }
    Matrix gram = keys * keys.transpose();
    const double ridge = 1e-4 * gram.trace() / layer.dim_k + 1e-12;
    gram.diagonal().array() += ridge;
    const Matrix solved = gram.llt().solve(keys);
    for (uint32_t t = 0; t < layer.tokens; ++t) {
      out[size_t{t} * layer.heads + h] = static_cast<float>(keys.col(t).dot(solved.col(t)));
    }
  }
}

}  // namespace kvstow
