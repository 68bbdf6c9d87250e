#include "kernels/transform/pair_rotations.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/digest.h"
#include "hwy/highway.h"

namespace kvstow {
namespace {

constexpr uint32_t kWidth = 24;

// Channels [kWidth, tokens] that come in correlated pairs (2k, 2k + 1), or not at all.
std::vector<float> Tokens(size_t tokens, float correlation) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> values(kWidth * tokens);
  for (size_t t = 0; t < tokens; ++t) {
    for (uint32_t k = 0; k < kWidth; k += 2) {
      const float common = normal(random), rest = std::sqrt(1 - correlation * correlation);
      values[k * tokens + t] = common;
      values[(k + 1) * tokens + t] = 2 * (correlation * common + rest * normal(random));
    }
  }
  return values;
}

double LogVariances(const std::vector<float>& values) {
  double sum = 0;
  for (uint32_t i = 0; i < kWidth; ++i) {
    double square = 0;
    const size_t tokens = values.size() / kWidth;
    for (size_t t = 0; t < tokens; ++t)
      square += double{values[i * tokens + t]} * values[i * tokens + t];
    sum += std::log2(square);
  }
  return sum;
}

TEST(PairRotations, SaveWhatCorrelationIsWorth) {
  const size_t tokens = 400;
  std::vector<float> values = Tokens(tokens, 0.9f);
  const double before = LogVariances(values);
  const BlockRotations found = FindRotations(values.data(), tokens, tokens, kWidth, 0.1);
  EXPECT_GE(found.size(), kWidth / 2);
  Rotate(found, tokens, values.data());
  // A pair of correlation r has log2(1 / (1 - r^2)) to give.
  EXPECT_LT(LogVariances(values), before + 0.9 * kWidth / 2 * std::log2(1 - 0.81));
}

TEST(PairRotations, NothingIsTakenWhereNothingIsSaved) {
  const std::vector<float> independent = Tokens(400, 0);
  EXPECT_LE(FindRotations(independent.data(), 400, 400, kWidth, 0.1).size(), 6u);
  // Spreads far below the step cost no bits.
  const std::vector<float> close = Tokens(400, 0.9f);
  EXPECT_TRUE(FindRotations(close.data(), 400, 400, kWidth, 100).empty());
  EXPECT_TRUE(FindRotations(close.data(), 400, 400, 1, 0.1).empty());
  const std::vector<float> zeros(400 * kWidth);
  EXPECT_TRUE(FindRotations(zeros.data(), 400, 400, kWidth, 0.1).empty());
}

TEST(PairRotations, AreOrthonormalAndTurnBack) {
  const std::vector<float> values = Tokens(48, 0.8f);
  const BlockRotations found = FindRotations(values.data(), 48, 48, kWidth, 0.01);
  ASSERT_FALSE(found.empty());
  std::vector<float> turned = values;
  Rotate(found, 48, turned.data());
  double before = 0, after = 0;
  for (const float v : values) before += double{v} * v;
  for (const float v : turned) after += double{v} * v;
  EXPECT_NEAR(after, before, 1e-4 * before);
  RotateBack(found, 48, turned.data());
  for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(turned[i], values[i], 1e-5) << i;
}

TEST(PairRotations, AreTheSameOnEverySimdTarget) {
  const std::vector<float> values = Tokens(80, 0.7f);
  const BlockRotations want = FindRotations(values.data(), 77, 80, kWidth, 0.1);
  std::vector<float> expected = values;
  Rotate(want, 80, expected.data());
  ASSERT_FALSE(want.empty());
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    EXPECT_EQ(FindRotations(values.data(), 77, 80, kWidth, 0.1), want);
    std::vector<float> turned = values;
    Rotate(want, 80, turned.data());
    EXPECT_EQ(turned, expected);
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST(PairRotations, BytesComeBackAndDamageIsFound) {
  std::mt19937 random(8);
  const std::vector<uint32_t> widths = RotationBlocks(2, 80);
  EXPECT_EQ(widths, (std::vector<uint32_t>{64, 16, 64, 16}));
  std::vector<BlockRotations> blocks(widths.size());
  for (size_t b = 0; b < blocks.size(); ++b) {
    for (uint32_t n = random() % 20; n > 0; --n) {
      const auto second = static_cast<uint8_t>(1 + random() % (widths[b] - 1));
      blocks[b].push_back(
          {static_cast<uint8_t>(random() % second), second, static_cast<uint8_t>(random() % 16)});
    }
  }
  const std::string bytes = SerializeRotations(blocks);
  ByteReader reader(AsBytes(bytes));
  const auto read = ReadRotations(reader, widths);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, blocks);
  EXPECT_EQ(reader.remaining(), 0u);
  for (size_t size = 0; size < bytes.size(); ++size) {
    ByteReader cut(AsBytes(bytes).first(size));
    EXPECT_EQ(ReadRotations(cut, widths).status().code(), absl::StatusCode::kDataLoss) << size;
  }
  // All ones: the pair (63, 64), which no block has.
  const std::string ones = "\1" + std::string(3, '\0') + std::string(200, '\xff');
  ByteReader wild(AsBytes(ones));
  EXPECT_EQ(ReadRotations(wild, widths).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace kvstow
