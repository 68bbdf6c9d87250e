// Sums over channels have the same bits on every SIMD target as value by value.
#include "kernels/importance/vector_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/kernels/every_target.h"
#include "tests/kernels/pages.h"

namespace kvstow {
namespace {

// Values of all sizes, zeros of both signs among them.
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
  OnEveryTarget<VectorSums>([&](const VectorSums& best, const VectorSums& reference) {
    // `sums` writes `size` sums with a table's loops.
    const auto expect_same = [&](size_t size, auto sums) {
      std::vector<float> got(size, 0.5F), want(size, 0.5F);
      sums(best, got.data());
      sums(reference, want.data());
      EXPECT_TRUE(SameBits(got, want));
    };
    for (const size_t dim : {1, 8, 15, 16, 17, 64, 80, 100}) {
      SCOPED_TRACE(dim);
      const Vectors rows{x.data(), 19, dim + 3, dim};
      for (const size_t y_stride : {size_t{0}, dim}) {
        expect_same(19, [&](const VectorSums& loops, float* out) {
          loops.dot_products(rows, y.data(), y_stride, out);
        });
      }
      expect_same(
          dim, [&](const VectorSums& loops, float* out) { loops.add_scaled(rows, y.data(), out); });
      expect_same(2 * dim, [&](const VectorSums& loops, float* out) {
        loops.channel_bounds(rows, out, out + dim);
      });
      expect_same(19, [&](const VectorSums& loops, float* out) {
        loops.deviations(rows, y.data(), y.data() + 200, out);
      });
      expect_same(19 * dim,
                  [&](const VectorSums& loops, float* out) { loops.pair_lengths(rows, out, dim); });
      expect_same(19,
                  [&](const VectorSums& loops, float* out) { loops.sums_above(rows, 0.5F, out); });
    }
  });
}

}  // namespace
}  // namespace kvstow
