// How much tokens count near the end of their page.
#include "kernels/calibration/page_end.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace kvstow::testing {
namespace {

using ::testing::ElementsAre;

double SumOf(const auto& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// Pages of 512: the end of this one and that of the next are within 1,024 tokens.
TEST(PageEndTest, WeightsAreTheFormulaOfTheHeader) {
  const std::vector<double> weights = EndWeights(512);
  ASSERT_EQ(weights.size(), 512);
  EXPECT_NEAR(SumOf(weights), 512, 1e-9);
  const double last = 1.0 / 8 + 1.0 / 520, before = 1.0 / 9 + 1.0 / 521;
  EXPECT_NEAR(weights[510] / weights[511], before / last, 1e-12);
  EXPECT_NEAR(weights[0] / weights[511], (1.0 / 519 + 1.0 / 1031) / last, 1e-12);
}

TEST(PageEndTest, StepsFollowTheWeights) {
  const std::vector<double> weights = EndWeights(256);
  const std::vector<float> steps = EndLogSteps(256);
  EXPECT_NEAR(SumOf(steps), 0, 1e-4);
  EXPECT_TRUE(std::ranges::is_sorted(steps, std::greater()));
  EXPECT_NEAR(steps[0] - steps[255], 0.3 * std::log2(weights[255] / weights[0]), 1e-5);
}

// Small pages end often, so their tokens hardly differ.
TEST(PageEndTest, SmallPagesHaveNearlyOneStep) {
  EXPECT_THAT(EndWeights(1), ElementsAre(1));
  EXPECT_THAT(EndLogSteps(1), ElementsAre(0));
  EXPECT_LT(EndLogSteps(16).front() - EndLogSteps(16).back(), 0.25);
  EXPECT_GT(EndLogSteps(256).front() - EndLogSteps(256).back(), 1);
}

}  // namespace
}  // namespace kvstow::testing
