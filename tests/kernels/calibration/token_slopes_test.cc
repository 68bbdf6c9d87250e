// Sensitivities of tokens, foretold from their K and V.
#include "kernels/calibration/token_slopes.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/pages.h"

namespace kvstow::testing {
namespace {

// Three layers of one KV head; K of 2 channels and V of 1.
KvSpec Spec() { return SpecOf(DType::kF16, 3, 1, 2, 1, 64); }
ModelStats Stats() {
  ModelStats stats;
  stats.slope_k = {1, 2, 0.5f, 0, 0, -1};
  stats.slope_v = {4, -2, 3};
  return stats;
}

TEST(TokenSlopesTest, LayersOfARunAddUp) {
  const TokenSlopes slopes(Spec(), Stats(), {1, 2});
  ASSERT_FALSE(slopes.empty());
  // K of layers 1 and 2, then V of both. The means are 5, 1, 2, 3, 0, 1.
  const std::vector<float> x = {6, 1, 2, 4, 0.5f, 1, 4, 1, 2, 2, -0.5f, 1};
  const double a = std::exp(0.5 * 1 - 2 * 0.5) + std::exp(-1.0),
               b = std::exp(-0.5 * 1 + 2 * 0.5) + std::exp(1.0);
  const std::vector<float> found = slopes.Sensitivity(x);
  ASSERT_EQ(found.size(), 2);
  const double unit = (std::pow(a, 0.6) + std::pow(b, 0.6)) / 2;
  EXPECT_NEAR(found[0], a / unit, 1e-5);
  EXPECT_NEAR(found[1], b / unit, 1e-5);
}

TEST(TokenSlopesTest, NoSlopesSayNothing) { EXPECT_TRUE(TokenSlopes(Spec(), {}, {0, 3}).empty()); }

// The guess: a layer's K, of the vectors of its run.
TEST(TokenSlopesTest, KeysStandInForSlopes) {
  const std::vector<float> x = {6, 1, 2, 4, 0.5f, 1, 4, 1, 2, 2, -0.5f, 3};
  FirstMoments moments(6);
  moments.Add(x.data(), 2);
  const TokenSlopes slopes(Spec(), 2, moments);
  ASSERT_FALSE(slopes.empty());
  // Means of K are 5, 1 and 2, 3; variances 1, 0 and 0, 1.
  const double first = 5.6 * 5 / std::sqrt(26), second = 5.6 * 3 / std::sqrt(13);
  const std::vector<float> found = slopes.Sensitivity(x);
  const double a = std::exp(-first) + std::exp(-second), b = std::exp(first) + std::exp(second);
  EXPECT_NEAR(found[0] / found[1], a / b, 1e-5 * a / b);
}

TEST(TokenSlopesTest, LatentsAreNoKeys) {
  const KvSpec latents = SpecOf(DType::kF16, 1, 1, 6, 0, 64);
  FirstMoments moments(6);
  EXPECT_TRUE(TokenSlopes(latents, 1, moments).empty());
}

TEST(TokenSlopesTest, SlopesOfAnotherModelStayFinite) {
  ModelStats stats = Stats();
  for (float& slope : stats.slope_k) slope = 1e30f;
  const std::vector<float> x = {1e4f, 1, 1, -1e4f, 1, 1, 0, 0, 0};
  const std::vector<float> found = TokenSlopes(Spec(), stats, {0, 1}).Sensitivity(x);
  for (const float s : found) EXPECT_TRUE(std::isfinite(s) && s >= 0) << s;
  EXPECT_GT(found[0], found[1]);
}

}  // namespace
}  // namespace kvstow::testing
