#include "kernels/importance/recent_queries.h"

#include <algorithm>
#include <cmath>

#include "kernels/transform/rope.h"

namespace kvstow {
namespace {

// Computes the attention of one query of one head to the first `seen` tokens.
void Probabilities(const LayerView& keys, const float* query, uint32_t kv_head, uint32_t seen,
                   std::vector<double>& out) {
  out.resize(seen);
  const double scale = 1 / std::sqrt(static_cast<double>(keys.dim_k));
  for (uint32_t t = 0; t < seen; ++t) {
    const float* k = keys.Key(t, kv_head);
    double dot = 0;
    for (uint32_t c = 0; c < keys.dim_k; ++c) dot += static_cast<double>(query[c]) * k[c];
    out[t] = dot * scale;
  }
  const double most = *std::max_element(out.begin(), out.end());
  double sum = 0;
  for (double& p : out) sum += p = std::exp(p - most);
  for (double& p : out) p /= sum;
}

}  // namespace

RecentAttention AttentionOf(const LayerView& keys, const RecentQueries& queries, uint32_t window) {
  const uint32_t count = std::min(std::min(window, queries.count), keys.tokens);
  const uint32_t group = queries.heads / keys.heads;
  const size_t size = size_t{keys.tokens} * queries.heads;
  RecentAttention out{std::vector<float>(size), std::vector<float>(size), std::vector<float>(size),
                      std::vector<float>(size)};
  std::vector<double> p, sum, squares;
  for (uint32_t h = 0; h < queries.heads; ++h) {
    sum.assign(keys.tokens, 0);
    squares.assign(keys.tokens, 0);
    for (uint32_t i = queries.count - count; i < queries.count; ++i) {
      const uint32_t seen = keys.tokens - (queries.count - 1 - i);
      const float* query = queries.values + (size_t{i} * queries.heads + h) * queries.dim;
      Probabilities(keys, query, h / group, seen, p);
      for (uint32_t t = 0; t < seen; ++t) {
        sum[t] += p[t];
        squares[t] += p[t] * p[t];
        const size_t at = size_t{t} * queries.heads + h;
        out.hits[at] += p[t] > 1.0 / seen ? 1.0F : 0.0F;
        if (i + 1 == queries.count) out.last[at] = static_cast<float>(p[t]);
      }
    }
    for (uint32_t t = 0; t < keys.tokens; ++t) {
      const size_t at = size_t{t} * queries.heads + h;
      const double mean = sum[t] / count;
      out.sum[at] = static_cast<float>(sum[t]);
      out.variance[at] = static_cast<float>(std::max(0.0, squares[t] / count - mean * mean));
    }
  }
  return out;
}

void AppendQueryStatistics(const RecentQueries& queries, const RopeSpec& rope,
                           uint64_t first_position, QueryStatistics& out) {
  RopeSpec turned = rope;
  turned.k_after_rope = true;
  std::vector<float> q(queries.values,
                       queries.values + size_t{queries.count} * queries.heads * queries.dim);
  RopeRotation(turned, queries.dim, first_position, queries.count).Undo(queries.heads, q.data());
  out.heads = queries.heads;
  out.dim = queries.dim;
  ++out.layers;
  const uint32_t dim = queries.dim;
  const bool interleaved = rope.layout == RopeSpec::Layout::kInterleaved;
  for (uint32_t h = 0; h < queries.heads; ++h) {
    std::vector<double> mean(dim), moment(size_t{dim} * dim), magnitude(dim / 2);
    for (uint32_t i = 0; i < queries.count; ++i) {
      const float* x = q.data() + (size_t{i} * queries.heads + h) * dim;
      for (uint32_t r = 0; r < dim; ++r) {
        mean[r] += x[r];
        for (uint32_t c = 0; c < dim; ++c) moment[size_t{r} * dim + c] += double{x[r]} * x[c];
      }
      for (uint32_t f = 0; f < dim / 2; ++f) {
        magnitude[f] +=
            interleaved ? std::hypot(x[2 * f], x[2 * f + 1]) : std::hypot(x[f], x[f + dim / 2]);
      }
    }
    const double n = queries.count;
    for (double& m : mean) out.mean.push_back(static_cast<float>(m /= n));
    for (uint32_t r = 0; r < dim; ++r) {
      for (uint32_t c = 0; c < dim; ++c) {
        out.covariance.push_back(
            static_cast<float>(moment[size_t{r} * dim + c] / n - mean[r] * mean[c]));
      }
    }
    for (const double m : magnitude) out.magnitude.push_back(static_cast<float>(m / n));
  }
}

}  // namespace kvstow
