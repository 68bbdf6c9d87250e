// The guess which tokens a model looks at, from their keys.
#include "kernels/calibration/key_slopes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace kvstow::testing {
namespace {

using ::testing::Each;

// Two heads of two channels: m is (3, 4) and (0, -2), s^2 is 4 and 9.
TEST(KeySlopesTest, AreTheFormulaOfTheHeader) {
  const std::vector<float> means = {3, 4, 0, -2};
  const std::vector<double> variances = {1, 3, 9, 0};
  const std::vector<float> slopes = KeySlopes(2, means, variances);
  ASSERT_EQ(slopes.size(), 4);
  EXPECT_NEAR(slopes[0], -5.6 / 2 * 3 / (5 * 2), 1e-6);
  EXPECT_NEAR(slopes[1], -5.6 / 2 * 4 / (5 * 2), 1e-6);
  EXPECT_EQ(slopes[2], 0);
  EXPECT_NEAR(slopes[3], 5.6 / 2 * 2 / (2 * 3), 1e-6);
}

TEST(KeySlopesTest, TheUnitOfKeysDoesNotMatter) {
  const std::vector<float> means = {3, 4}, larger = {300, 400};
  const std::vector<double> variances = {1, 3}, wider = {1e4, 3e4};
  const std::vector<float> slopes = KeySlopes(1, means, variances),
                           other = KeySlopes(1, larger, wider);
  for (size_t i = 0; i < slopes.size(); ++i) EXPECT_NEAR(100 * other[i], slopes[i], 1e-6);
}

TEST(KeySlopesTest, KeysWithoutAMeanOrASpreadSayNothing) {
  EXPECT_THAT(KeySlopes(1, std::vector<float>{0, 0}, std::vector<double>{1, 3}), Each(0));
  EXPECT_THAT(KeySlopes(1, std::vector<float>{3, 4}, std::vector<double>{0, 0}), Each(0));
  const std::vector<double> none(2, std::nan(""));
  EXPECT_THAT(KeySlopes(1, std::vector<float>{3, 4}, none), Each(0));
}

}  // namespace
}  // namespace kvstow::testing
