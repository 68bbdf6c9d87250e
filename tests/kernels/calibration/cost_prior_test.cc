// The guess of what errors of K and V cost a model of which nothing is known.
#include "kernels/calibration/cost_prior.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/kernels/pages.h"

namespace kvstow::testing {
namespace {

constexpr double kNats = 0.14;

// One layer of two heads of 2 + 2 channels: variances of K of both, then of V of both.
TEST(CostPrior, IsTheFormulaOfItsHeader) {
  const KvSpec spec = SpecOf(DType::kF16, 1, 2, 2, 2, 128);
  const std::vector<double> variances = {1, 4, 9, 9, 2, 2, 6, 2};
  const std::vector<double> costs = CostPrior(spec, variances);
  ASSERT_EQ(costs.size(), variances.size());
  const double s0 = 17.0 / 5, s1 = 9, mean = (s0 + s1) / 2, u0 = s0 / mean, u1 = s1 / mean;
  const double unit = kNats / 2;  // a mean over two heads
  EXPECT_NEAR(costs[0], unit * u0 * u0 * (1 / 1.5) / 5, 1e-12);
  EXPECT_NEAR(costs[1], unit * u0 * u0 * (2 / 1.5) / 5, 1e-12);
  EXPECT_NEAR(costs[2], unit * u1 * u1 / 18, 1e-12);
  EXPECT_NEAR(costs[3], unit * u1 * u1 / 18, 1e-12);
  // V of both heads has a variance of 6 on average.
  EXPECT_NEAR(costs[4], unit * u0 / 6, 1e-12);
  EXPECT_NEAR(costs[7], unit * u1 / 6, 1e-12);
}

// The same where keys pass a norm: channels of K alike, V of all layers alike.
TEST(CostPrior, NormedKeysHaveAFormulaOfTheirOwn) {
  const KvSpec spec = SpecOf(DType::kF16, 1, 2, 2, 2, 128);
  const std::vector<double> variances = {1, 4, 9, 9, 2, 2, 6, 2};
  const std::vector<double> costs = CostPrior(spec, variances, /*normed_keys=*/true);
  const double s0 = 17.0 / 5, s1 = 9, mean = (s0 + s1) / 2, u0 = s0 / mean, u1 = s1 / mean;
  const std::vector<double> of_k = {u0 / 5, u0 / 5, u1 / 18, u1 / 18};
  for (size_t c = 0; c < 4; ++c) {
    EXPECT_NEAR(costs[c], 1.0 / 2 * of_k[c], 1e-12) << c;
    EXPECT_NEAR(costs[4 + c], 0.4 / 2 / 6, 1e-12) << c;
  }
}

TEST(CostPrior, NoUnitOfKOrVMatters) {
  const KvSpec spec = SpecOf(DType::kF16, 2, 1, 2, 2, 128);
  std::vector<double> variances = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<double> before = CostPrior(spec, variances);
  for (double& v : variances) v *= 100;
  const std::vector<double> after = CostPrior(spec, variances);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(100 * after[i] / before[i], 1, 1e-9) << i;
}

TEST(CostPrior, NoHeadIsFeltBeyondAllBounds) {
  const KvSpec spec = SpecOf(DType::kF16, 40, 1, 2, 2, 128);
  std::vector<double> variances(40 * 4, 1);
  variances[0] = variances[1] = 1e9;
  variances[4] = variances[5] = 0;
  const std::vector<double> costs = CostPrior(spec, variances);
  const double unit = kNats / 40 / 2;  // two channels share the variance of V
  EXPECT_NEAR(costs[2], 16 * unit, 1e-12);
  EXPECT_NEAR(costs[6], unit / 16, 1e-12);
}

// A channel that stands still in the pages at hand may move later: its cost has bounds.
TEST(CostPrior, ChannelsThatStandStillCostSomething) {
  const KvSpec spec = SpecOf(DType::kF16, 2, 2, 4, 4, 128);
  for (const double other : {0.0, 1.0}) {
    std::vector<double> variances(32, other);
    variances[1] = variances[20] = 0;
    for (const double cost : CostPrior(spec, variances)) {
      EXPECT_TRUE(std::isfinite(cost)) << other;
      EXPECT_GT(cost, 0) << other;
    }
  }
}

// Latents are no keys: their spread says nothing of scores.
TEST(CostPrior, LatentsCountTheSame) {
  KvSpec spec = SpecOf(DType::kF16, 2, 1, 4, 0, 128);
  for (const bool normed : {false, true}) {
    const std::vector<double> costs =
        CostPrior(spec, std::vector<double>{1, 1, 1, 1, 9, 9, 9, 27}, normed);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(costs[i], kNats / 2 / 4, 1e-12);
      EXPECT_NEAR(costs[4 + i], kNats / 2 / 54, 1e-12);
    }
  }
}

}  // namespace
}  // namespace kvstow::testing
