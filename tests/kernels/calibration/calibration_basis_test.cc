#include "kernels/calibration/calibration_basis.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "tests/kernels/pages.h"

namespace kvstow::testing {
namespace {

// Orthonormal rows: an identity that was mirrored at some random planes.
std::vector<double> RandomBasis(size_t n) {
  Gaussian gaussian(17);
  std::vector<double> rows(n * n), plane(n);
  for (size_t i = 0; i < n; ++i) rows[i * n + i] = 1;
  for (int mirror = 0; mirror < 3; ++mirror) {
    for (double& x : plane) x = gaussian();
    const double squares = std::inner_product(plane.begin(), plane.end(), plane.begin(), 0.0);
    for (size_t i = 0; i < n; ++i) {
      double* const row = &rows[i * n];
      const double along = 2 * std::inner_product(plane.begin(), plane.end(), row, 0.0) / squares;
      for (size_t j = 0; j < n; ++j) row[j] -= along * plane[j];
    }
  }
  return rows;
}

// Moments whose principal components are those rows; variances fall by `ratio` from one to the
// next.
std::vector<double> Moments(const std::vector<double>& basis, size_t n, double ratio) {
  std::vector<double> out(n * n);
  double variance = 100;
  for (size_t k = 0; k < n; ++k, variance *= ratio) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j)
        out[i * n + j] += variance * basis[k * n + i] * basis[k * n + j];
    }
  }
  return out;
}

TEST(CalibrationBasisTest, WhiteningHasTheMetricsSizeAndAnInverse) {
  // Eigenvalues 4 and 0: the second is lifted to a thousandth of their mean.
  const float metric[] = {2, 2, 2, 2};
  const WhiteningBlock block = WhitenByMetric(0, metric, 2, 3);
  const auto product = [&](size_t i, size_t j) {
    return block.forward[i] * block.inverse[2 * j] +
           block.forward[2 + i] * block.inverse[2 * j + 1];
  };
  EXPECT_NEAR(product(0, 0), 1, 1e-9);
  EXPECT_NEAR(product(1, 0), 0, 1e-9);
  const double along = block.forward[0] + block.forward[1];
  EXPECT_NEAR(along, 3 * std::sqrt(2.0), 1e-9);
  const double across = block.forward[0] - block.forward[1];
  EXPECT_NEAR(across, 3 * std::sqrt(1e-3), 1e-9);
}

TEST(CalibrationBasisTest, ComponentsAreOrderedAndDecodeInvertsEncode) {
  const std::vector<double> moments = {4, 0, 0, 0, 9, 0, 0, 0, 1};
  const std::vector<WhiteningBlock> blocks = {WhitenByScale(0, 2, 1), WhitenByScale(2, 1, 10)};
  const Basis basis = FitBasis(moments, 3, blocks);
  EXPECT_NEAR(std::abs(basis.encode[2]), 10, 1e-5);
  EXPECT_NEAR(std::abs(basis.decode[2]), 0.1, 1e-6);
  EXPECT_NEAR(std::abs(basis.encode[3 + 1]), 1, 1e-5);
  EXPECT_NEAR(std::abs(basis.encode[6 + 0]), 1, 1e-5);
}

// Below and above the width from which they are found in another way.
TEST(CalibrationBasisTest, PrincipalComponentsAreFoundLargestFirst) {
  for (const size_t n : {1, 2, 40, 256, 257, 330}) {
    const std::vector<double> basis = RandomBasis(n);
    const auto found = PrincipalComponents(Moments(basis, n, 0.98), n, n);
    ASSERT_EQ(found.size(), n * n);
    for (size_t i = 0; i < n; ++i) {
      double along = 0, squares = 0;
      for (size_t j = 0; j < n; ++j) {
        along += basis[i * n + j] * double{found[i * n + j]};
        squares += double{found[i * n + j]} * double{found[i * n + j]};
      }
      EXPECT_NEAR(std::abs(along), 1, 1e-4) << n << ", " << i;
      EXPECT_NEAR(squares, 1, 1e-5) << n << ", " << i;
    }
  }
}

TEST(CalibrationBasisTest, AWideBasisUndoesWhatItDoes) {
  constexpr size_t kWidth = 300;
  const auto moments = Moments(RandomBasis(kWidth), kWidth, 0.95);
  const std::vector<WhiteningBlock> blocks = {WhitenByScale(0, 100, 2), WhitenByScale(100, 200, 3)};
  const Basis basis = FitBasis(moments, kWidth, blocks);
  for (size_t i = 0; i < kWidth; i += 7) {
    for (size_t j = 0; j < kWidth; j += 3) {
      double sum = 0;
      for (size_t k = 0; k < kWidth; ++k)
        sum += double{basis.encode[k * kWidth + i]} * double{basis.decode[k * kWidth + j]};
      EXPECT_NEAR(sum, i == j ? 1 : 0, 1e-5) << i << ", " << j;
    }
  }
}

TEST(CalibrationBasisTest, WideMomentsWithoutSpreadStillHaveABasis) {
  constexpr size_t kWidth = 280;
  std::vector<double> moments(kWidth * kWidth);
  for (size_t i = 0; i < 5; ++i) moments[i * kWidth + i] = 5.0 - static_cast<double>(i);
  const auto found = PrincipalComponents(moments, kWidth, kWidth);
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(std::abs(found[i * kWidth + i]), 1, 1e-5) << i;
  for (const float x : found) ASSERT_TRUE(std::isfinite(x));
}

}  // namespace
}  // namespace kvstow::testing
