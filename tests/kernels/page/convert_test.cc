#include "kernels/page/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/page/half.h"

namespace kvstow {
namespace {

TEST(HalfTest, EveryHalfComesBack) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const auto half = static_cast<uint16_t>(h);
    const float value = HalfToFloat(half);
    EXPECT_EQ(std::isfinite(value), IsFiniteHalf(half));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(value))));
      continue;
    }
    EXPECT_EQ(FloatToHalf(value), half);
    if (IsFiniteHalf(half)) {
      const int exponent = half >> 10 & 31, mantissa = half & 1023;
      const double expected =
          exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      EXPECT_EQ(std::abs(value), expected);
    }
  }
}

TEST(HalfTest, RoundsToNearestEven) {
  for (uint32_t h = 0; h < 0x7bff; ++h) {
    const double low = HalfToFloat(static_cast<uint16_t>(h));
    const double high = HalfToFloat(static_cast<uint16_t>(h + 1));
    const auto middle = static_cast<float>((low + high) / 2);
    EXPECT_EQ(FloatToHalf(middle), h % 2 == 0 ? h : h + 1);
    EXPECT_EQ(FloatToHalf(std::nextafter(middle, 0.0f)), h);
    EXPECT_EQ(FloatToHalf(std::nextafter(middle, 1e9f)), h + 1);
  }
  EXPECT_EQ(FloatToHalf(65519.0f), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);
}

TEST(HalfTest, Bf16RoundsToNearestEven) {
  EXPECT_EQ(FloatToBf16(1.0f), 0x3f80);
  EXPECT_EQ(FloatToBf16(0x1.01p0f), 0x3f80);  // half way, to even
  EXPECT_EQ(FloatToBf16(0x1.03p0f), 0x3f82);  // half way, to even
  EXPECT_EQ(FloatToBf16(0x1.010002p0f), 0x3f81);
  EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_EQ(Bf16ToFloat(FloatToBf16(-kMaxBf16)), -kMaxBf16);
}

TEST(ConvertTest, StoringSaturates) {
  const float values[] = {1e38f, -1e38f, 65519.9f, 70000.0f, std::numeric_limits<float>::max()};
  uint8_t raw[20];
  float back[5];
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    StoreFloats(dtype, values, 5, raw);
    EXPECT_TRUE(LoadFloats(dtype, raw, 5, back)) << DTypeName(dtype);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(std::signbit(back[i]), std::signbit(values[i]));
  }
  StoreFloats(DType::kF16, values, 5, raw);
  LoadFloats(DType::kF16, raw, 5, back);
  EXPECT_EQ(back[0], kMaxHalf);
  EXPECT_EQ(back[1], -kMaxHalf);
}

TEST(ConvertTest, LoadingFindsNanAndInfWhereverTheyAre) {
  std::vector<uint16_t> halves(100, 0x3c00);
  std::vector<float> out(halves.size());
  const auto load = [&](DType dtype) {
    return LoadFloats(dtype, reinterpret_cast<const uint8_t*>(halves.data()), 100, out.data());
  };
  EXPECT_TRUE(load(DType::kF16));
  for (size_t i = 0; i < halves.size(); ++i) {
    for (const uint16_t odd : {0x7c00, 0xfc00, 0x7c01, 0xffff}) {
      halves[i] = odd;
      EXPECT_FALSE(load(DType::kF16)) << i;
    }
    halves[i] = 0x7f80;
    EXPECT_FALSE(load(DType::kBF16)) << i;
    halves[i] = 0x3c00;
  }
}

}  // namespace
}  // namespace kvstow
