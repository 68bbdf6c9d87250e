#include "kernels/quantize/scalar_lloyd.h"

#include <algorithm>

namespace kvstow {
namespace {

constexpr int kIterations = 60;

}  // namespace

std::vector<float> FitCodebook(std::vector<WeightedValue> values, size_t entries) {
  std::vector<float> out(entries);
  if (values.empty()) return out;
  std::stable_sort(
      values.begin(), values.end(),
      [](const WeightedValue& a, const WeightedValue& b) { return a.value < b.value; });
  const size_t n = values.size();
  std::vector<double> weights(n + 1), sums(n + 1);  // of all values before
  for (size_t i = 0; i < n; ++i) {
    weights[i + 1] = weights[i] + values[i].weight;
    sums[i + 1] = sums[i] + double{values[i].weight} * values[i].value;
  }
  for (size_t e = 0; e < entries; ++e) out[e] = values[(2 * e + 1) * n / (2 * entries)].value;
  for (int round = 0; round < kIterations; ++round) {
    size_t begin = 0;
    for (size_t e = 0; e < entries; ++e) {
      size_t end = n;
      if (e + 1 < entries) {
        const float middle = (out[e] + out[e + 1]) * 0.5f;
        const auto above =
            std::partition_point(values.begin() + static_cast<std::ptrdiff_t>(begin), values.end(),
                                 [&](const WeightedValue& v) { return v.value <= middle; });
        end = static_cast<size_t>(above - values.begin());
      }
      const double weight = weights[end] - weights[begin];
      if (weight > 0) out[e] = static_cast<float>((sums[end] - sums[begin]) / weight);
      begin = end;
    }
    std::sort(out.begin(), out.end());
  }
  return out;
}

}  // namespace kvstow
