#include "kernels/importance/query_scores.h"

#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <complex>
#include <vector>

#include "kernels/transform/rope.h"

namespace kvstow {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;
using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr uint32_t kSpots = 24;  // positions at which the rotation of future queries is averaged

// The query heads that read one KV head.
struct HeadGroup {
  uint32_t first = 0, count = 0;
};
HeadGroup GroupOf(const LayerView& layer, const QueryStatistics& queries, uint32_t head) {
  const uint32_t group = queries.heads / layer.heads;
  return {head * group, group};
}

size_t HeadIndex(const LayerView& layer, const QueryStatistics& queries, uint32_t head) {
  return size_t{layer.layer} * queries.heads + head;
}

VectorXd MeanOf(const LayerView& layer, const QueryStatistics& queries, uint32_t head) {
  const float* mean = queries.mean.data() + HeadIndex(layer, queries, head) * queries.dim;
  return Eigen::Map<const Eigen::VectorXf>(mean, queries.dim).cast<double>();
}

MatrixXd CovarianceOf(const LayerView& layer, const QueryStatistics& queries, uint32_t head) {
  const size_t size = size_t{queries.dim} * queries.dim;
  const float* values = queries.covariance.data() + HeadIndex(layer, queries, head) * size;
  return Eigen::Map<const RowMajor>(values, queries.dim, queries.dim).cast<double>();
}

// The spec as it turns vectors, whether or not the page's K is turned.
RopeSpec Turning(RopeSpec rope) {
  rope.k_after_rope = true;
  return rope;
}

// Keys of one head, [dim, tokens], with RoPE or without.
MatrixXd Keys(const LayerView& layer, const RopeSpec& rope, uint32_t head, bool turned) {
  std::vector<float> k(size_t{layer.tokens} * layer.dim_k);
  for (uint32_t t = 0; t < layer.tokens; ++t) {
    std::copy_n(layer.Key(t, head), layer.dim_k, k.data() + size_t{t} * layer.dim_k);
  }
  if (turned != rope.k_after_rope) {
    const RopeRotation rotation(Turning(rope), layer.dim_k, layer.first_position, layer.tokens);
    turned ? rotation.Redo(1, k.data()) : rotation.Undo(1, k.data());
  }
  return Eigen::Map<const RowMajor>(k.data(), layer.tokens, layer.dim_k).cast<double>().transpose();
}

// The matrix that RoPE is at a position, [dim, dim]: it turns x into R x.
MatrixXd RotationAt(const RopeSpec& rope, uint32_t dim, uint64_t position) {
  RowMajor rows = RowMajor::Identity(dim, dim);
  RopeRotation(Turning(rope), dim, position, 1).Redo(dim, rows.data());
  return rows.cast<double>().transpose();
}

// Mean and second moment, over the positions to come, of RoPE applied to the queries of each head.
struct FutureQueries {
  std::vector<VectorXd> mean;
  std::vector<MatrixXd> covariance;
};
FutureQueries Future(const LayerView& layer, const RopeSpec& rope, const QueryStatistics& queries,
                     uint32_t ahead) {
  FutureQueries future;
  future.mean.assign(queries.heads, VectorXd::Zero(queries.dim));
  future.covariance.assign(queries.heads, MatrixXd::Zero(queries.dim, queries.dim));
  const uint64_t end = layer.first_position + layer.tokens;
  for (uint32_t spot = 0; spot < kSpots; ++spot) {
    const uint64_t position = end + uint64_t{ahead} * spot / (kSpots - 1);
    const MatrixXd r = RotationAt(rope, queries.dim, position);
    for (uint32_t h = 0; h < queries.heads; ++h) {
      future.mean[h] += r * MeanOf(layer, queries, h) / kSpots;
      future.covariance[h] += r * CovarianceOf(layer, queries, h) * r.transpose() / kSpots;
    }
  }
  return future;
}

// Adds softmax(logits) / share to column `head` of out.
void AddSoftmax(const VectorXd& logits, uint32_t heads, uint32_t head, double share, float* out) {
  const VectorXd p = (logits.array() - logits.maxCoeff()).exp();
  const double scale = 1 / (p.sum() * share);
  for (Eigen::Index t = 0; t < p.size(); ++t) {
    out[t * heads + head] += static_cast<float>(p[t] * scale);
  }
}

// Which two channels a pair turns.
std::pair<uint32_t, uint32_t> PairChannels(const RopeSpec& rope, uint32_t pairs, uint32_t pair) {
  if (rope.layout == RopeSpec::Layout::kInterleaved) return {2 * pair, 2 * pair + 1};
  return {pair, pair + pairs};
}

// The mean over offsets 1, 2, 4 .. 65536 after the page of the turn by `frequency`.
std::complex<double> MeanTurn(double frequency, uint64_t end) {
  constexpr int kOffsets = 17;
  std::complex<double> sum;
  for (int i = 0; i < kOffsets; ++i) {
    sum += std::polar(1.0, frequency * static_cast<double>(end + (uint64_t{1} << i)));
  }
  return sum / double{kOffsets};
}

// The score of all tokens under one query head, before standardizing.
VectorXd CentreLogits(const MatrixXd& keys, const RopeSpec& rope, const LayerView& layer,
                      const QueryStatistics& queries, uint32_t head) {
  const std::vector<double> frequencies = RopeFrequencies(rope, layer.dim_k);
  const auto pairs = static_cast<uint32_t>(frequencies.size());
  const double scale = RopeMagnitude(rope) * RopeMagnitude(rope);
  const VectorXd mean = MeanOf(layer, queries, head);
  const float* magnitude =
      queries.magnitude.data() + HeadIndex(layer, queries, head) * (queries.dim / 2);
  VectorXd logits = VectorXd::Zero(layer.tokens);
  for (uint32_t f = 0; f < pairs; ++f) {
    const auto [a, b] = PairChannels(rope, pairs, f);
    const std::complex<double> centre(mean[a], mean[b]);
    const std::complex<double> query =
        centre * MeanTurn(frequencies[f], layer.first_position + layer.tokens) * scale;
    const double rest = std::max(0.0, magnitude[f] - std::abs(centre));
    for (uint32_t t = 0; t < layer.tokens; ++t) {
      const std::complex<double> key(keys(a, t), keys(b, t));
      logits[t] += query.real() * key.real() + query.imag() * key.imag() + rest * std::abs(key);
    }
  }
  return logits;
}

}  // namespace

void ExpectedAttentionScore(const LayerView& layer, const RopeSpec& rope,
                            const QueryStatistics& queries, uint32_t ahead, float* out) {
  std::fill_n(out, size_t{layer.tokens} * layer.heads, 0.0F);
  const FutureQueries future = Future(layer, rope, queries, ahead);
  const double root = std::sqrt(static_cast<double>(layer.dim_k));
  for (uint32_t h = 0; h < layer.heads; ++h) {
    const MatrixXd keys = Keys(layer, rope, h, true);
    const HeadGroup group = GroupOf(layer, queries, h);
    for (uint32_t q = group.first; q < group.first + group.count; ++q) {
      const MatrixXd turned = future.covariance[q] * keys;
      const VectorXd spread = keys.cwiseProduct(turned).colwise().sum().transpose();
      const VectorXd logits =
          keys.transpose() * future.mean[q] / root + spread / (2.0 * layer.dim_k);
      AddSoftmax(logits, layer.heads, h, group.count, out);
    }
  }
}

void QueryDirectionScore(const LayerView& layer, const RopeSpec& rope,
                         const QueryStatistics& queries, float* out) {
  std::fill_n(out, size_t{layer.tokens} * layer.heads, 0.0F);
  for (uint32_t h = 0; h < layer.heads; ++h) {
    const MatrixXd keys = Keys(layer, rope, h, false);
    const HeadGroup group = GroupOf(layer, queries, h);
    for (uint32_t q = group.first; q < group.first + group.count; ++q) {
      const VectorXd mean = MeanOf(layer, queries, q);
      const MatrixXd moment = CovarianceOf(layer, queries, q) + mean * mean.transpose();
      const Eigen::SelfAdjointEigenSolver<MatrixXd> solver(moment);
      VectorXd direction = solver.eigenvectors().col(moment.cols() - 1);
      if (direction.dot(mean) < 0) direction = -direction;
      const VectorXd along = keys.transpose() * direction / group.count;
      for (uint32_t t = 0; t < layer.tokens; ++t) {
        out[size_t{t} * layer.heads + h] += static_cast<float>(along[t]);
      }
    }
  }
}

void TrigonometricScore(const LayerView& layer, const RopeSpec& rope,
                        const QueryStatistics& queries, float* out) {
  std::fill_n(out, size_t{layer.tokens} * layer.heads, 0.0F);
  for (uint32_t h = 0; h < layer.heads; ++h) {
    const MatrixXd keys = Keys(layer, rope, h, true);
    const HeadGroup group = GroupOf(layer, queries, h);
    for (uint32_t q = group.first; q < group.first + group.count; ++q) {
      VectorXd logits = CentreLogits(keys, rope, layer, queries, q);
      logits.array() -= logits.mean();
      const double deviation = std::sqrt(logits.squaredNorm() / layer.tokens);
      if (deviation > 0) logits /= deviation * group.count;
      for (uint32_t t = 0; t < layer.tokens; ++t) {
        out[size_t{t} * layer.heads + h] += static_cast<float>(logits[t]);
      }
    }
  }
}

}  // namespace kvstow
