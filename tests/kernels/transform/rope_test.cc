#include "kernels/transform/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <random>

namespace kvstow {
namespace {

using Layout = RopeSpec::Layout;
using Scaling = RopeSpec::Scaling;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<float> RandomValues(size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& x : out) x = normal(random);
  return out;
}

RopeSpec Spec(Layout layout, Scaling scaling = Scaling::kNone) {
  RopeSpec rope;
  rope.layout = layout;
  rope.scaling = scaling;
  if (scaling != Scaling::kNone) rope.factor = 4;
  rope.low_freq_factor = 1;
  rope.high_freq_factor = scaling == Scaling::kYarn ? 32 : 4;
  rope.original_context = 4096;
  return rope;
}

// The definition: each pair as a complex number, turned.
void RedoByDefinition(const RopeSpec& rope, uint32_t dim, uint64_t position, float* x) {
  const std::vector<double> frequencies = RopeFrequencies(rope, dim);
  const size_t pairs = frequencies.size();
  for (size_t i = 0; i < pairs; ++i) {
    const bool half = rope.layout == Layout::kHalf;
    float& a = x[half ? i : 2 * i];
    float& b = x[half ? i + pairs : 2 * i + 1];
    const std::complex<double> turned =
        std::complex<double>(a, b) *
        std::polar(RopeMagnitude(rope), static_cast<double>(position) * frequencies[i]);
    a = static_cast<float>(turned.real());
    b = static_cast<float>(turned.imag());
  }
}

struct Case {
  Layout layout;
  Scaling scaling;
  uint32_t head_dim, rotary_dims;
};

class RopeCases : public ::testing::TestWithParam<Case> {};

TEST_P(RopeCases, RedoIsTheDefinitionAndUndoItsInverse) {
  const Case& param = GetParam();
  RopeSpec rope = Spec(param.layout, param.scaling);
  rope.rotary_dims = param.rotary_dims;
  constexpr uint32_t kTokens = 5, kHeads = 3;
  constexpr uint64_t kFirst = 1000;
  const std::vector<float> plain = RandomValues(kTokens * kHeads * param.head_dim);
  std::vector<float> expected = plain;
  for (uint32_t i = 0; i < kTokens * kHeads; ++i) {
    RedoByDefinition(rope, param.head_dim, kFirst + i / kHeads,
                     expected.data() + i * param.head_dim);
  }
  const RopeRotation rotation(rope, param.head_dim, kFirst, kTokens);
  std::vector<float> values = plain;
  rotation.Redo(kHeads, values.data());
  for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], expected[i], 2e-6) << i;
  rotation.Undo(kHeads, values.data());
  for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], plain[i], 2e-6) << i;
}

INSTANTIATE_TEST_SUITE_P(AllKinds, RopeCases,
                         ::testing::Values(Case{Layout::kHalf, Scaling::kNone, 64, 0},
                                           Case{Layout::kInterleaved, Scaling::kNone, 64, 0},
                                           Case{Layout::kHalf, Scaling::kLinear, 80, 0},
                                           Case{Layout::kInterleaved, Scaling::kNtk, 96, 0},
                                           Case{Layout::kHalf, Scaling::kYarn, 128, 0},
                                           Case{Layout::kHalf, Scaling::kLlama3, 128, 0},
                                           Case{Layout::kHalf, Scaling::kNone, 192, 64},
                                           Case{Layout::kInterleaved, Scaling::kYarn, 576, 64},
                                           Case{Layout::kHalf, Scaling::kNtk, 2, 0}));

TEST(RopeTest, PartOfThePageIsThatPart) {
  const RopeRotation rotation(Spec(Layout::kHalf), 16, 7, 6);
  std::vector<float> all = RandomValues(6 * 2 * 16);
  std::vector<float> part(all.begin() + 2 * 32, all.begin() + 5 * 32);
  rotation.Undo(2, all.data());
  rotation.Undo(2, 3, 2, part.data());
  EXPECT_EQ(part, std::vector<float>(all.begin() + 2 * 32, all.begin() + 5 * 32));
}

// Angles go from token to token, and anew every so often: at the same tokens in any part.
TEST(RopeTest, TokensOfAPageTurnByTheSameAnglesInAnyPart) {
  constexpr uint32_t kTokens = 200;
  for (const uint64_t position : {0, 1000, 1'000'000'007}) {
    const RopeRotation whole(Spec(Layout::kHalf), 16, position, kTokens);
    for (uint32_t first = 0; first < kTokens; ++first) {
      const uint32_t count = std::min(70u, kTokens - first);
      const RopeRotation part(Spec(Layout::kHalf), 16, position + first, count, first);
      const size_t at = first * whole.pairs(), values = count * whole.pairs();
      EXPECT_TRUE(std::ranges::equal(part.cosines(), whole.cosines().subspan(at, values))) << first;
      EXPECT_TRUE(std::ranges::equal(part.sines(), whole.sines().subspan(at, values))) << first;
    }
  }
}

TEST(RopeTest, ChannelsBeyondTheRotaryOnesStay) {
  RopeSpec rope = Spec(Layout::kHalf);
  rope.rotary_dims = 4;
  std::vector<float> values = RandomValues(10);
  const std::vector<float> before = values;
  RopeRotation(rope, 10, 3, 1).Redo(1, values.data());
  EXPECT_NE(values[0], before[0]);
  EXPECT_EQ(std::vector<float>(values.begin() + 4, values.end()),
            std::vector<float>(before.begin() + 4, before.end()));
}

TEST(RopeTest, NothingToUndoWithoutLayoutOrBeforeRope) {
  RopeSpec before_rope = Spec(Layout::kHalf);
  before_rope.k_after_rope = false;
  for (const RopeSpec& rope : {Spec(Layout::kNone), before_rope}) {
    const RopeRotation rotation(rope, 8, 5, 2);
    EXPECT_TRUE(rotation.identity());
    std::vector<float> values = RandomValues(16);
    const std::vector<float> plain = values;
    rotation.Undo(1, values.data());
    rotation.Redo(1, values.data());
    EXPECT_EQ(values, plain);
  }
}

TEST(RopeTest, LayersTurnByTheirOwnRope) {
  KvSpec spec{.layers = 6, .kv_heads = 2, .head_dim_k = 16, .rope = Spec(Layout::kHalf)};
  spec.other_rope = {.rope = Spec(Layout::kInterleaved), .layers = {1, 4}};
  for (const LayerRange layers : {LayerRange{0, 6}, LayerRange{2, 2}, LayerRange{4, 1}}) {
    const LayerRotations rotations(spec, layers, 7, 5);
    for (uint32_t layer = layers.first; layer < layers.first + layers.count; ++layer) {
      std::vector<float> got = RandomValues(5 * 2 * 16), want = got;
      rotations.Of(layer).Undo(2, got.data());
      const bool other = layer == 1 || layer == 4;
      RopeRotation(Spec(other ? Layout::kInterleaved : Layout::kHalf), 16, 7, 5)
          .Undo(2, want.data());
      EXPECT_EQ(got, want) << layer;
    }
  }
}

TEST(RopeTest, FarPositionsKeepTheirPrecision) {
  RopeSpec rope = Spec(Layout::kHalf);
  rope.theta = 500000;
  const std::vector<float> plain = RandomValues(128);
  std::vector<float> values = plain;
  const RopeRotation rotation(rope, 128, 10'000'000, 1);
  rotation.Redo(1, values.data());
  rotation.Undo(1, values.data());
  for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], plain[i], 2e-6) << i;
}

// Values of transformers' ROPE_INIT_FUNCTIONS for these parameters.
TEST(RopeTest, FrequenciesAreThePublishedOnes) {
  EXPECT_THAT(RopeFrequencies(Spec(Layout::kNone), 8), IsEmpty());
  EXPECT_THAT(RopeFrequencies(Spec(Layout::kHalf), 8),
              ElementsAre(DoubleNear(1, 1e-12), DoubleNear(.1, 1e-12), DoubleNear(.01, 1e-12),
                          DoubleNear(.001, 1e-12)));
  EXPECT_THAT(RopeFrequencies(Spec(Layout::kHalf, Scaling::kLinear), 4),
              ElementsAre(DoubleNear(.25, 1e-12), DoubleNear(.0025, 1e-12)));
  // The longest wavelength is interpolated by exactly `factor`, the shortest not at all.
  const std::vector<double> ntk = RopeFrequencies(Spec(Layout::kHalf, Scaling::kNtk), 8);
  EXPECT_DOUBLE_EQ(ntk[0], 1);
  EXPECT_NEAR(ntk[3], .001 / 4, 1e-12);
  const std::vector<double> yarn = RopeFrequencies(Spec(Layout::kHalf, Scaling::kYarn), 64);
  EXPECT_DOUBLE_EQ(yarn[0], 1);
  EXPECT_NEAR(yarn[31], std::pow(1e4, -62.0 / 64) / 4, 1e-15);
  // Turns over 4096: 652, 65, 6.5, .65 against the limits 1 and 4.
  const std::vector<double> llama = RopeFrequencies(Spec(Layout::kHalf, Scaling::kLlama3), 8);
  EXPECT_DOUBLE_EQ(llama[2], std::pow(1e4, -4.0 / 8));
  EXPECT_DOUBLE_EQ(llama[3], std::pow(1e4, -6.0 / 8) / 4);
  // 2 turns of 4096: a third of the way from 1 to 4.
  RopeSpec blend = Spec(Layout::kHalf, Scaling::kLlama3);
  blend.theta = 4096 * 4096 / (4 * std::acos(-1.0) * 4 * std::acos(-1.0));
  const double f = RopeFrequencies(Spec(Layout::kHalf), 4)[0];
  ASSERT_EQ(f, 1);
  const double plain = 4 * std::acos(-1.0) / 4096;
  EXPECT_NEAR(RopeFrequencies(blend, 4)[1], plain * (1.0 / 3 + 2.0 / 3 / 4), 1e-12);
}

TEST(RopeTest, OnlyYarnChangesTheSize) {
  EXPECT_EQ(RopeMagnitude(Spec(Layout::kHalf, Scaling::kLlama3)), 1);
  EXPECT_DOUBLE_EQ(RopeMagnitude(Spec(Layout::kHalf, Scaling::kYarn)), .1 * std::log(4) + 1);
}

}  // namespace
}  // namespace kvstow
