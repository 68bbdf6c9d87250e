#include "kernels/importance/merge.h"

#include <cmath>
#include <cstddef>

namespace kvstow {
namespace {

double Product(const float* a, const float* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += double{a[i]} * b[i];
  return sum;
}

}  // namespace

void MergeValues(std::span<const float> keys, std::span<const uint8_t> keep,
                 std::span<float> values) {
  const size_t tokens = keep.size();
  if (tokens == 0) return;
  const size_t dim_k = keys.size() / tokens, dim_v = values.size() / tokens;
  std::vector<size_t> kept;
  std::vector<double> norms;  // of kept keys; that of the other does not change the order
  for (size_t t = 0; t < tokens; ++t) {
    if (keep[t] == 0) continue;
    kept.push_back(t);
    norms.push_back(std::sqrt(Product(&keys[t * dim_k], &keys[t * dim_k], dim_k)));
  }
  if (kept.empty() || dim_v == 0) return;
  std::vector<double> sums(kept.size() * dim_v), counts(kept.size());
  const auto add = [&](size_t token, size_t to) {
    for (size_t i = 0; i < dim_v; ++i) sums[to * dim_v + i] += values[token * dim_v + i];
    counts[to] += 1;
  };
  for (size_t i = 0; i < kept.size(); ++i) add(kept[i], i);
  for (size_t t = 0; t < tokens; ++t) {
    if (keep[t] != 0) continue;
    size_t nearest = 0;
    double best = -INFINITY;
    for (size_t i = 0; i < kept.size(); ++i) {
      const double product = Product(&keys[t * dim_k], &keys[kept[i] * dim_k], dim_k);
      const double cosine = norms[i] > 0 ? product / norms[i] : 0;
      if (cosine > best) best = cosine, nearest = i;
    }
    add(t, nearest);
  }
  for (size_t i = 0; i < kept.size(); ++i) {
    for (size_t c = 0; c < dim_v; ++c) {
      values[kept[i] * dim_v + c] = static_cast<float>(sums[i * dim_v + c] / counts[i]);
    }
  }
}

}  // namespace kvstow
