// Budgets: how many tokens stay, which ones, and what happens at the edges.
#include "kernels/importance/budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"

namespace kvstow {
namespace {

constexpr uint32_t kLayers = 5, kTokens = 60, kHeads = 3;

ScoreMap RandomScores(uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(0, 1);
  ScoreMap map(kLayers, kTokens, kHeads);
  for (float& x : map.values) x = uniform(random);
  return map;
}

Selection Select(const Budget& budget, const Protection& protection, const ScoreMap& scores,
                 std::span<const uint8_t> named = {}) {
  const std::vector<double> shares = LayerShares(budget, protection, scores, &scores, &scores);
  return SelectTokens(budget, protection, named, shares, scores, nullptr);
}

size_t KeptOf(const Selection& s, uint32_t layer, uint32_t head) {
  size_t kept = 0;
  for (uint32_t t = 0; t < s.tokens; ++t) kept += s.Kept(layer, t, head);
  return kept;
}
size_t KeptOf(const Selection& s, uint32_t layer) {
  size_t kept = 0;
  for (uint32_t h = 0; h < s.heads; ++h) kept += KeptOf(s, layer, h);
  return kept;
}
size_t KeptOf(const Selection& s) {
  return std::accumulate(s.keep.begin(), s.keep.end(), size_t{0});
}

TEST(BudgetTest, EveryHeadKeepsItsBest) {
  const ScoreMap scores = RandomScores(1);
  const Selection s = Select({.keep = 0.25}, {}, scores);
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < kHeads; ++h) {
      ASSERT_EQ(KeptOf(s, l, h), 15u) << "layer " << l << " head " << h;
      float least_kept = 2, most_dropped = -1;
      for (uint32_t t = 0; t < kTokens; ++t) {
        const float x = scores.Layer(l)[t * kHeads + h];
        (s.Kept(l, t, h) ? least_kept = std::min(least_kept, x)
                         : most_dropped = std::max(most_dropped, x));
      }
      EXPECT_GT(least_kept, most_dropped) << "layer " << l << " head " << h;
    }
  }
}

TEST(BudgetTest, TiesGoToTheEarlierToken) {
  const Selection s = Select({.keep = 0.5}, {}, ScoreMap(kLayers, kTokens, kHeads));
  for (uint32_t t = 0; t < kTokens; ++t) EXPECT_EQ(s.Kept(2, t, 1), t < kTokens / 2) << t;
}

TEST(BudgetTest, ProtectedTokensStayAndCount) {
  const ScoreMap scores = RandomScores(2);
  std::vector<uint8_t> named(kTokens, 0);
  named[20] = named[21] = 1;
  const Selection s = Select({.keep = 0.25}, {.first = 4, .last = 6}, scores, named);
  for (const uint32_t t : {0, 3, 20, 21, 54, 59}) EXPECT_TRUE(s.Kept(0, t, 0)) << t;
  EXPECT_EQ(KeptOf(s, 0, 0), 15u);
}

TEST(BudgetTest, MoreProtectedThanTheBudgetAllows) {
  EXPECT_EQ(KeptOf(Select({.keep = 0.1}, {.last = 40}, RandomScores(3)), 1, 1), 40u);
  EXPECT_EQ(KeptOf(Select({.keep = 0.1}, {.first = 400, .last = 400}, RandomScores(3)), 1, 1),
            kTokens)
      << "a page shorter than its protected window";
}

TEST(BudgetTest, NothingAndEverything) {
  const ScoreMap scores = RandomScores(4);
  for (const BudgetScope scope :
       {BudgetScope::kHead, BudgetScope::kLayer, BudgetScope::kPage, BudgetScope::kToken}) {
    EXPECT_EQ(Select({.keep = 0, .scope = scope}, {}, scores).Share(), 0);
    EXPECT_EQ(Select({.keep = 1, .scope = scope}, {}, scores).Share(), 1);
    EXPECT_EQ(Select({.count = 10000, .scope = scope}, {}, scores).Share(), 1);
    EXPECT_EQ(Select({.count = 0, .scope = scope}, {}, scores).Share(), 0);
  }
}

TEST(BudgetTest, ScopesSpendTheSameInTotal) {
  const ScoreMap scores = RandomScores(5);
  const Selection layer = Select({.keep = 0.3, .scope = BudgetScope::kLayer}, {}, scores);
  for (uint32_t l = 0; l < kLayers; ++l) EXPECT_EQ(KeptOf(layer, l), 18 * kHeads) << l;
  const Selection page = Select({.keep = 0.3, .scope = BudgetScope::kPage}, {}, scores);
  EXPECT_EQ(KeptOf(page), 18 * kHeads * kLayers);
  const Selection token = Select({.keep = 0.3, .scope = BudgetScope::kToken}, {}, scores);
  EXPECT_EQ(KeptOf(token), 18 * kHeads * kLayers);
  for (uint32_t t = 0; t < kTokens; ++t) {
    for (uint32_t l = 0; l < kLayers; ++l) EXPECT_EQ(token.Kept(l, t, 2), token.Kept(0, t, 0));
  }
}

TEST(BudgetTest, AHeadHasItsFloor) {
  ScoreMap scores = RandomScores(6);
  for (size_t i = 0; i < scores.values.size(); i += kHeads) scores.values[i] -= 10;  // head 0 loses
  const Budget budget{.keep = 0.5, .scope = BudgetScope::kLayer, .floor = 0.2};
  const Selection s = Select(budget, {}, scores);
  EXPECT_EQ(KeptOf(s, 0, 0), 6u) << "a fifth of 30";
  EXPECT_EQ(KeptOf(s, 0), 30 * kHeads);
}

TEST(BudgetTest, ScoresThatAreNotFiniteComeLast) {
  ScoreMap scores = RandomScores(7);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  for (uint32_t t = 0; t < 20; ++t) scores.values[t * kHeads] = t % 2 == 0 ? nan : inf;
  const Selection s = Select({.count = 40}, {}, scores);
  for (uint32_t t = 0; t < kTokens; ++t) EXPECT_EQ(s.Kept(0, t, 0), t >= 20) << t;
}

TEST(BudgetTest, AThresholdKeepsWhatReachesIt) {
  const ScoreMap scores = RandomScores(8);
  const Selection s = Select({.threshold = 0.7}, {.first = 1}, scores);
  for (size_t e = kHeads; e < scores.values.size(); ++e) {
    if (e / kHeads % kTokens == 0) continue;
    EXPECT_EQ(s.keep[e] != 0, scores.values[e] >= 0.7) << e;
  }
}

TEST(BudgetTest, TheFirstScoreTakesItsPart) {
  ScoreMap recent(kLayers, kTokens, kHeads), heavy = RandomScores(9);
  for (size_t e = 0; e < recent.values.size(); ++e) {
    recent.values[e] = static_cast<float>(e / kHeads % kTokens);
  }
  const Budget budget{.keep = 0.5, .split = 0.5};
  const std::vector<double> shares(kLayers, 0.5);
  const Selection s = SelectTokens(budget, {}, {}, shares, heavy, &recent);
  for (uint32_t t = kTokens - 15; t < kTokens; ++t) EXPECT_TRUE(s.Kept(1, t, 1)) << t;
  EXPECT_EQ(KeptOf(s, 1, 1), 30u);
}

class ProfileTest : public testing::TestWithParam<LayerProfile> {};

TEST_P(ProfileTest, SpendsTheBudget) {
  const ScoreMap scores = RandomScores(10);
  for (const double keep : {0.05, 0.25, 0.5, 0.9, 1.0}) {
    const Budget budget{.keep = keep, .profile = GetParam()};
    const std::vector<double> shares = LayerShares(budget, {}, scores, &scores, &scores);
    const double mean = std::accumulate(shares.begin(), shares.end(), 0.0) / kLayers;
    if (GetParam() != LayerProfile::kLazy && keep <= 0.5) {
      EXPECT_NEAR(mean, keep, 1e-9) << keep;
    }
    for (const double share : shares) {
      EXPECT_GE(share, 0);
      EXPECT_LE(share, 1 + 1e-12);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Profiles, ProfileTest,
                         ::testing::Values(LayerProfile::kFlat, LayerProfile::kPyramid,
                                           LayerProfile::kDecay, LayerProfile::kVariance,
                                           LayerProfile::kLazy));

TEST(LayerSharesTest, APyramidFallsWithDepth) {
  const ScoreMap scores = RandomScores(11);
  const std::vector<double> shares =
      LayerShares({.keep = 0.25, .profile = LayerProfile::kPyramid}, {}, scores, nullptr, nullptr);
  for (uint32_t l = 1; l < kLayers; ++l) EXPECT_LT(shares[l], shares[l - 1]);
  EXPECT_NEAR(shares.back(), 0.25 / 20, 1e-12);
}

// The entropy of such a layer is 0, whatever rounding leaves of it.
TEST(LayerSharesTest, ALayerThatLooksAtOneTokenLeavesTheBudgetToTheOthers) {
  for (int i = 1; i <= 500; ++i) {
    ScoreMap window = RandomScores(12);
    const ScoreMap variance = RandomScores(13);
    std::fill_n(window.Layer(0), window.LayerSize(), 0.0F);
    for (uint32_t h = 0; h < kHeads; ++h) window.Layer(0)[h] = 0.001F * static_cast<float>(i);
    const std::vector<double> shares = LayerShares(
        {.keep = 0.25, .profile = LayerProfile::kVariance}, {}, window, &window, &variance);
    EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 0.25 * kLayers, 1e-9) << i;
    EXPECT_LT(shares[0], 1e-6) << i;
  }
}

TEST(LayerSharesTest, AVarianceThatIsNoNumberWeighsNothing) {
  const ScoreMap window = RandomScores(12);
  for (const float odd :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    ScoreMap variance = RandomScores(13);
    variance.Layer(2)[7] = odd;
    const std::vector<double> shares = LayerShares(
        {.keep = 0.25, .profile = LayerProfile::kVariance}, {}, window, &window, &variance);
    EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 0.25 * kLayers, 1e-9);
  }
}

TEST(LayerSharesTest, ALayerWhoseProtectedHoldTheScoreIsLazy) {
  ScoreMap scores(2, kTokens, kHeads);
  for (size_t i = 0; i < scores.LayerSize(); ++i) {
    scores.Layer(0)[i] = i / kHeads < 4 ? 100.0F : 1.0F;
    scores.Layer(1)[i] = 1;
  }
  const Budget budget{.keep = 1, .profile = LayerProfile::kLazy, .lazy = 0.8};
  const Selection s = Select(budget, {.first = 4}, scores);
  EXPECT_EQ(KeptOf(s, 0, 0), 4u);
  EXPECT_EQ(KeptOf(s, 1, 0), kTokens);
}

}  // namespace
}  // namespace kvstow
