#include "kernels/calibration/key_slopes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

namespace kvstow {
namespace {

constexpr double kPull = 5.6;
constexpr double kLeastLength = 1e-6;  // of a mean times a spread

}  // namespace

std::vector<float> KeySlopes(uint32_t heads, std::span<const float> means,
                             std::span<const double> variances) {
  const size_t dim = means.size() / heads;
  std::vector<float> slopes(means.size());
  for (size_t first = 0; first < means.size(); first += dim) {
    const auto mean = means.subspan(first, dim);
    const auto variance = variances.subspan(first, dim);
    const double square = std::inner_product(mean.begin(), mean.end(), mean.begin(), 0.0);
    const double spread = std::accumulate(variance.begin(), variance.end(), 0.0);
    const double length = std::sqrt(square * spread);
    if (!(length > kLeastLength)) continue;
    const double unit = -kPull / heads / length;
    std::ranges::transform(mean, slopes.begin() + static_cast<std::ptrdiff_t>(first),
                           [unit](float m) { return static_cast<float>(unit * m); });
  }
  return slopes;
}

}  // namespace kvstow
