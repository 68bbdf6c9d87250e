#include "kernels/entropy/small_integers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/digest.h"

namespace kvstow {
namespace {

std::vector<int8_t> Draw(size_t count, double scale, int limit, uint32_t seed) {
  std::mt19937 random(seed);
  std::exponential_distribution<double> size(1 / scale);
  std::vector<int8_t> out(count);
  for (int8_t& value : out) {
    const int magnitude = std::min(static_cast<int>(size(random)), limit);
    value = static_cast<int8_t>(random() % 2 == 0 ? magnitude : -magnitude);
  }
  return out;
}

TEST(SmallIntegers, ComeBackAndLeaveWhatFollows) {
  for (const int limit : {1, 8, 12}) {
    for (uint32_t spread = 1; spread <= kMaxSpread; ++spread) {
      for (const size_t count : {0u, 1u, 2u, 700u}) {
        const std::vector<int8_t> values = Draw(count, 2, limit, spread);
        std::string out = "before";
        PutSmallIntegers(values, spread, limit, out);
        out += "behind";
        std::span<const uint8_t> bytes = AsBytes(out).subspan(6);
        std::vector<int8_t> back(count, 99);
        ASSERT_TRUE(GetSmallIntegers(bytes, spread, limit, back).ok()) << spread << " " << count;
        EXPECT_EQ(back, values);
        EXPECT_EQ(bytes.size(), 6u);
      }
    }
  }
}

TEST(SmallIntegers, TakeTheBitsThatTheySay) {
  const std::vector<int8_t> values = Draw(2000, 1, 8, 3);
  for (uint32_t spread = 1; spread <= kMaxSpread; ++spread) {
    float bits = 0;
    const std::vector<float> each = SmallIntegerBits(spread, 8);
    for (const int8_t value : values) bits += each[static_cast<size_t>(value + 8)];
    std::string out;
    PutSmallIntegers(values, spread, 8, out);
    EXPECT_NEAR(static_cast<double>(8 * out.size()), bits + 32, 24 + bits / 100) << spread;
  }
  EXPECT_LT(SmallIntegerBits(1, 8)[8], 0.01f);
  EXPECT_LT(SmallIntegerBits(kMaxSpread, 8)[16], 6.0f);
}

TEST(SmallIntegers, ACutOrOtherListIsDataLoss) {
  const std::vector<int8_t> values = Draw(300, 1, 8, 3);
  std::string out;
  PutSmallIntegers(values, 5, 8, out);
  std::vector<int8_t> back(values.size());
  for (size_t size = 0; size < out.size(); ++size) {
    std::span<const uint8_t> bytes = AsBytes(out).first(size);
    EXPECT_EQ(GetSmallIntegers(bytes, 5, 8, back).code(), absl::StatusCode::kDataLoss) << size;
  }
  std::mt19937 random(5);
  int refused = 0;
  for (int round = 0; round < 500; ++round) {
    std::string damaged = out;
    damaged[random() % out.size()] ^= static_cast<char>(1 + random() % 255);
    std::span<const uint8_t> bytes = AsBytes(damaged);
    refused += GetSmallIntegers(bytes, 5, 8, back).ok() ? 0 : 1;
    for (const int8_t value : back) ASSERT_LE(std::abs(value), 8);
  }
  EXPECT_GT(refused, 450);
}

}  // namespace
}  // namespace kvstow
