// Sums over channels have the same bits on every SIMD target as value by value.
#include "kernels/importance/vector_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "hwy/highway.h"
#include "tests/kernels/pages.h"

namespace kvstow {
namespace {

// Of all sizes, zeros of both signs among them.
std::vector<float> Values(uint64_t seed) {
  testing::Gaussian next(seed);
  std::vector<float> out(6000);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = i % 16 == 0 ? std::copysign(0.0F, next())
                         : std::ldexp(next(), static_cast<int>(i % 24) - 12);
  }
  return out;
}

TEST(VectorSumsTest, AddInTheSameOrderOnEveryTarget) {
  const std::vector<float> x = Values(1), y = Values(2);
  const auto same = [](size_t size, auto fast, auto reference) {
    std::vector<float> got(size, 0.5F), want(size, 0.5F);
    fast(got.data());
    reference(want.data());
    EXPECT_EQ(std::memcmp(got.data(), want.data(), size * sizeof(float)), 0);
  };
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    for (const size_t dim : {1, 8, 15, 16, 17, 64, 80, 100}) {
      SCOPED_TRACE(dim);
      const Vectors rows{x.data(), 19, dim + 3, dim};
      for (const size_t y_stride : {size_t{0}, dim}) {
        same(
            19, [&](float* out) { DotProducts(rows, y.data(), y_stride, out); },
            [&](float* out) { DotProductsReference(rows, y.data(), y_stride, out); });
      }
      same(
          dim, [&](float* out) { AddScaled(rows, y.data(), out); },
          [&](float* out) { AddScaledReference(rows, y.data(), out); });
      same(
          2 * dim, [&](float* out) { ChannelBounds(rows, out, out + dim); },
          [&](float* out) { ChannelBoundsReference(rows, out, out + dim); });
      same(
          19, [&](float* out) { Deviations(rows, y.data(), y.data() + 200, out); },
          [&](float* out) { DeviationsReference(rows, y.data(), y.data() + 200, out); });
      same(
          19 * dim, [&](float* out) { PairLengths(rows, out, dim); },
          [&](float* out) { PairLengthsReference(rows, out, dim); });
      same(
          19, [&](float* out) { SumsAbove(rows, 0.5F, out); },
          [&](float* out) { SumsAboveReference(rows, 0.5F, out); });
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace
}  // namespace kvstow
