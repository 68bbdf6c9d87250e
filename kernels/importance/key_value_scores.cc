#include "kernels/importance/key_value_scores.h"

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "kernels/importance/exponential.h"
#include "kernels/importance/vector_sums.h"
#include "kernels/page/split_mix.h"
#include "kernels/transform/dense_product.h"
#include "kernels/transform/transpose.h"

namespace kvstow {
namespace {

constexpr float kLeastNorm = 1e-6F;  // of a vector that is divided by its length

Vectors KeysOf(const LayerView& layer, uint32_t head, uint32_t first, uint32_t count) {
  return {layer.Key(first, head), count, size_t{layer.heads} * layer.dim_k, layer.dim_k};
}
Vectors ValuesOf(const LayerView& layer, uint32_t head, uint32_t first, uint32_t count) {
  return {layer.Value(first, head), count, size_t{layer.heads} * layer.dim_v, layer.dim_v};
}

void Norms(const Vectors& x, float* out) {
  VectorSums::Best().dot_products(x, x.x, x.stride, out);
  for (size_t i = 0; i < x.count; ++i) out[i] = std::sqrt(out[i]);
}

// One over the length of each vector.
std::vector<float> InverseNorms(const Vectors& x) {
  std::vector<float> out(x.count);
  Norms(x, out.data());
  for (float& norm : out) norm = 1 / std::max(norm, kLeastNorm);
  return out;
}

// Softmax over the vectors of `part` of the deviation across channels, each channel normalized by
// its least and largest value in `next`; added to out, `stride` apart.
void AddLagPartition(const Vectors& part, const Vectors& next, size_t stride, float* out) {
  std::vector<float> low(part.dim), inverse(part.dim), deviation(part.count);
  VectorSums::Best().channel_bounds(next, low.data(), inverse.data());
  for (size_t c = 0; c < part.dim; ++c) inverse[c] = 1 / std::max(inverse[c] - low[c], 1e-6F);
  VectorSums::Best().deviations(part, low.data(), inverse.data(), deviation.data());
  const float most = *std::max_element(deviation.begin(), deviation.end());
  float total = 0;
  for (float& d : deviation) total += d = FixedExp(d - most);
  for (size_t i = 0; i < part.count; ++i) out[i * stride] += deviation[i] / total;
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
  const size_t count = size_t{layer.tokens} * layer.heads;
  Norms({layer.k, count, layer.dim_k, layer.dim_k}, out);
  for (size_t i = 0; i < count; ++i) out[i] = -out[i];
}

void ValueNormScore(const LayerView& layer, float* out) {
  Norms({layer.v, size_t{layer.tokens} * layer.heads, layer.dim_v, layer.dim_v}, out);
}

void KeyDiversityScore(const LayerView& layer, float* out) {
  std::vector<float> cosine(layer.tokens);
  for (uint32_t h = 0; h < layer.heads; ++h) {
    const Vectors keys = KeysOf(layer, h, 0, layer.tokens);
    const std::vector<float> inverse = InverseNorms(keys);
    std::vector<float> sum(layer.dim_k);
    VectorSums::Best().add_scaled(keys, inverse.data(), sum.data());
    const float scale = InverseNorms({sum.data(), 1, sum.size(), sum.size()})[0];
    VectorSums::Best().dot_products(keys, sum.data(), 0, cosine.data());
    for (uint32_t t = 0; t < layer.tokens; ++t) {
      out[size_t{t} * layer.heads + h] = -cosine[t] * inverse[t] * scale;
    }
  }
}

void RedundancyScore(const LayerView& layer, float above, float* out) {
  constexpr uint32_t kRows = 64;  // of cosines that are in memory at once
  const uint32_t dim = layer.dim_k;
  std::vector<float> unit(size_t{layer.tokens} * dim), cosine(size_t{kRows} * layer.tokens);
  std::vector<float> repeated(kRows);
  for (uint32_t h = 0; h < layer.heads; ++h) {
    const Vectors keys = KeysOf(layer, h, 0, layer.tokens);
    const std::vector<float> inverse = InverseNorms(keys);
    PackedMatrix turned(dim, layer.tokens);
    for (uint32_t t = 0; t < layer.tokens; ++t) {
      const std::span<float> row(unit.data() + size_t{t} * dim, dim);
      for (uint32_t c = 0; c < dim; ++c) row[c] = keys[t][c] * inverse[t];
      turned.SetColumn(t, row);
    }
    for (uint32_t first = 0; first < layer.tokens; first += kRows) {
      const uint32_t n = std::min(kRows, layer.tokens - first);
      MultiplyRows(unit.data() + size_t{first} * dim, n, turned, {0, layer.tokens}, cosine.data(),
                   layer.tokens);
      // A key does not repeat itself.
      for (uint32_t t = 0; t < n; ++t) cosine[size_t{t} * layer.tokens + first + t] = 0;
      VectorSums::Best().sums_above({cosine.data(), n, layer.tokens, layer.tokens}, above,
                                    repeated.data());
      for (uint32_t t = 0; t < n; ++t) {
        out[size_t{first + t} * layer.heads + h] = -repeated[t] / static_cast<float>(layer.tokens);
      }
    }
  }
}

void LagScore(const LayerView& layer, uint32_t lag, float* out) {
  std::fill_n(out, size_t{layer.tokens} * layer.heads, 0.0F);
  uint32_t first = 0;
  for (; first + lag < layer.tokens; first += lag) {
    const uint32_t next = std::min(lag, layer.tokens - first - lag);
    for (uint32_t h = 0; h < layer.heads; ++h) {
      float* const at = out + size_t{first} * layer.heads + h;
      AddLagPartition(KeysOf(layer, h, first, lag), KeysOf(layer, h, first + lag, next),
                      layer.heads, at);
      if (layer.dim_v == 0) continue;
      AddLagPartition(ValuesOf(layer, h, first, lag), ValuesOf(layer, h, first + lag, next),
                      layer.heads, at);
    }
  }
  // No softmax is above 1: the last partition comes first, in order of position.
  for (uint32_t t = first; t < layer.tokens; ++t) {
    std::fill_n(out + size_t{t} * layer.heads, layer.heads, 3 + static_cast<float>(t));
  }
}

void LeverageScore(const LayerView& layer, float* out) {
  const uint32_t dim = layer.dim_k;
  std::vector<float> turned(size_t{dim} * layer.tokens), products(size_t{dim} * dim);
  std::vector<float> rows(size_t{layer.tokens} * dim), whitened(rows.size());
  std::vector<float> leverage(layer.tokens);
  for (uint32_t h = 0; h < layer.heads; ++h) {
    const Vectors keys = KeysOf(layer, h, 0, layer.tokens);
    Transpose(keys.x, keys.count, dim, keys.stride, turned.data(), layer.tokens);
    PackedMatrix packed(layer.tokens, dim);
    for (uint32_t t = 0; t < layer.tokens; ++t) {
      packed.SetRow(t, {keys[t], dim});
      std::copy_n(keys[t], dim, rows.data() + size_t{t} * dim);
    }
    MultiplyRows(turned.data(), dim, packed, {0, dim}, products.data(), dim);
    Eigen::MatrixXd gram =
        Eigen::Map<const Eigen::MatrixXf>(products.data(), dim, dim).cast<double>();
    gram.diagonal().array() += 1e-4 * gram.trace() / dim + 1e-12;
    // With gram = L L^T, the score is |L^-1 k|^2.
    const Eigen::MatrixXf inverse =
        gram.llt().matrixL().solve(Eigen::MatrixXd::Identity(dim, dim)).cast<float>();
    PackedMatrix whiten(dim, dim);
    for (uint32_t c = 0; c < dim; ++c) whiten.SetRow(c, {inverse.col(c).data(), dim});
    MultiplyRows(rows.data(), layer.tokens, whiten, {0, dim}, whitened.data(), dim);
    VectorSums::Best().dot_products({whitened.data(), layer.tokens, dim, dim}, whitened.data(), dim,
                                    leverage.data());
    for (uint32_t t = 0; t < layer.tokens; ++t) {
      out[size_t{t} * layer.heads + h] = leverage[t];
    }
  }
}

}  // namespace kvstow
