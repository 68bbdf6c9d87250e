// The block formats: every SIMD target gives the bytes of the scalar reference, and the scalar
// reference rounds as the formats say.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/page/channel_rows.h"
#include "kernels/quantize/block_scales.h"
#include "kernels/quantize/loops.h"
#include "tests/kernels/every_target.h"

namespace kvstow {
namespace {

struct Format {
  BlockFormat format;
  const char* name;
  size_t values, bytes;
  float one;  // a value of largest magnitude whose block has the scale 1
};

constexpr Format kFormats[] = {{BlockFormat::kQ8, "q8_0", 32, 34, 127},
                               {BlockFormat::kQ4, "q4_0", 32, 18, -8},
                               {BlockFormat::kNv4, "nvfp4", 16, 9, 6},
                               {BlockFormat::kMx4, "mxfp4", 32, 17, 7},
                               {BlockFormat::kMx8, "mxfp8", 32, 33, -448}};

// Encodes and decodes whole blocks on every target, from and to addresses of no alignment.
void ExpectTheSame(const Format& f, const std::vector<float>& values, float tensor) {
  const size_t count = values.size() / f.values;
  std::vector<float> from = values;
  from.insert(from.begin(), 0.0f);
  const float* const x = from.data() + 1;
  std::vector<uint8_t> expected(count * f.bytes + 1, 0xee);
  BlockLoops::Reference().encode(f.format, x, count, tensor, expected.data());
  std::vector<float> expected_back(count * f.values + 1, 7.0f);
  const bool ok = BlockLoops::Reference().decode(f.format, expected.data(), count, tensor,
                                                 expected_back.data());
  OnEveryTarget([&] {
    std::vector<uint8_t> blocks(count * f.bytes + 1, 0xee);
    BlockLoops::Best().encode(f.format, x, count, tensor, blocks.data());
    ASSERT_EQ(blocks, expected) << f.name;
    std::vector<float> back(count * f.values + 1, 7.0f);
    ASSERT_EQ(BlockLoops::Best().decode(f.format, blocks.data(), count, tensor, back.data()), ok)
        << f.name;
    if (ok) {
      ASSERT_TRUE(SameBits(back, expected_back)) << f.name;
    }
  });
}

TEST(BlockFormats, CodeTheSameOnEveryTarget) {
  for (const Format& f : kFormats) {
    for (size_t count = 0; count <= 40; ++count) {
      std::vector<float> values = ValuesOfAllSizes(count * f.values, 31 + count);
      const float top = LargestMagnitude(values.data(), values.size());
      ExpectTheSame(f, values, top / (kMaxE4M3 * kMaxE2M1));
    }
  }
}

// Each value of five binary places, and what lies next to it: whatever a code can be half-way to.
TEST(BlockFormats, RoundTheSameHalfWay) {
  std::vector<float> pool = {0.0f};
  for (int exponent = -14; exponent <= 8; ++exponent) {
    for (int m = 32; m < 64; ++m) pool.push_back(std::ldexp(static_cast<float>(m), exponent - 5));
  }
  for (int halves = 1; halves < 254; ++halves) pool.push_back(static_cast<float>(halves) / 2);
  for (const Format& f : kFormats) {
    std::vector<float> values;
    for (const float at : pool) {
      for (const float value : {std::nextafter(at, -1.0f), at, std::nextafter(at, 999.0f)}) {
        if (value > std::abs(f.one)) continue;
        for (const float sign : {1.0f, -1.0f}) {
          if (values.size() % f.values == 0) values.push_back(f.one);
          values.push_back(sign * value);
        }
      }
    }
    values.resize(values.size() / f.values * f.values);
    ASSERT_GT(values.size(), 1000u);
    ExpectTheSame(f, values, 1.0f);
  }
}

TEST(BlockFormats, CodeExtremesTheSame) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  for (const Format& f : kFormats) {
    std::vector<float> values;
    // The first of the largest values decides on the sign of q4_0's scale, even that of a zero.
    for (const float top : {0.0f, 1.0f, tiny, 1e-39f, 1e-8f, 65504.0f}) {
      for (const size_t first : {0, 1, 9, 15}) {
        for (const float sign : {1.0f, -1.0f}) {
          std::vector<float> block(f.values, sign * 0.0f);
          block[first] = sign * top;
          block[f.values - 1] = -sign * top;
          block[f.values / 2] = sign * top / 3;
          values.insert(values.end(), block.begin(), block.end());
        }
      }
    }
    // Among them scales of nvfp4 whose reciprocal is Inf, of which a value of 0 makes NaN.
    for (const float tensor : {0.0f, tiny, 1e-42f, 1e-38f, 1e-10f, 1.0f, 65504.0f / 2688}) {
      ExpectTheSame(f, values, tensor);
    }
    for (int exponent = -149; exponent < 16; ++exponent) {
      std::vector<float> block = ValuesOfAllSizes(f.values, 5);
      for (float& value : block) value = std::ldexp(std::clamp(value, -2.0f, 1.0f), exponent - 1);
      ExpectTheSame(f, block, std::ldexp(1.0f, exponent) / 2688);
    }
  }
}

TEST(BlockFormats, DecodeAnyBytesTheSame) {
  std::mt19937 random(8);
  for (const Format& f : kFormats) {
    int decoded = 0;
    for (int i = 0; i < 600; ++i) {
      std::vector<uint8_t> block(f.bytes);
      for (uint8_t& byte : block) byte = static_cast<uint8_t>(random());
      if (i % 2 == 0) std::for_each(block.begin() + 1, block.end(), [](auto& b) { b &= 0xbf; });
      std::vector<float> expected(f.values);
      const bool ok =
          BlockLoops::Reference().decode(f.format, block.data(), 1, 0.25f, expected.data());
      decoded += ok;
      OnEveryTarget([&] {
        std::vector<float> back(f.values);
        ASSERT_EQ(BlockLoops::Best().decode(f.format, block.data(), 1, 0.25f, back.data()), ok)
            << f.name;
        if (ok) {
          ASSERT_TRUE(SameBits(back, expected)) << f.name << ", " << i;
        }
      });
    }
    EXPECT_GT(decoded, 50) << f.name;
    EXPECT_LT(decoded, 600) << f.name;
  }
}

TEST(BlockFormats, ANaNCodeAnywhereIsRefused) {
  std::vector<uint8_t> blocks(3 * 33, 0x40);
  std::vector<float> values(3 * 32);
  OnEveryTarget([&] {
    EXPECT_TRUE(BlockLoops::Best().decode(BlockFormat::kMx8, blocks.data(), 3, 0, values.data()));
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (i % 33 == 0) continue;  // a scale
      for (const uint8_t nan : {0x7f, 0xff}) {
        std::vector<uint8_t> damaged = blocks;
        damaged[i] = nan;
        EXPECT_FALSE(
            BlockLoops::Best().decode(BlockFormat::kMx8, damaged.data(), 3, 0, values.data()))
            << i;
      }
    }
  });
}

// e = floor(log2(max |x|)) less the largest exponent of the format's codes, from -127 on.
TEST(BlockFormats, SharedExponentsAreThoseOfTheLargestValue) {
  for (int exponent = -149; exponent < 16; ++exponent) {
    for (const float mantissa : {1.0f, -1.5f, std::nextafter(2.0f, 0.0f)}) {
      const float top = std::ldexp(mantissa, exponent);
      const auto expect = [&](auto put, auto get, int of_codes) {
        const int e = std::max(std::ilogb(top) - of_codes, -127);
        uint8_t byte = 0;
        float scale = 0;
        EXPECT_EQ(put(top, 0.0f, &byte), std::ldexp(1.0f, -e)) << top;
        EXPECT_EQ(byte, e + 127) << top;
        EXPECT_TRUE(get(&byte, 0.0f, &scale));
        EXPECT_EQ(scale, std::ldexp(1.0f, e)) << top;
      };
      expect(Mx4Format::Put, Mx4Format::Get, 2);
      expect(Mx8Format::Put, Mx8Format::Get, 8);
    }
  }
}

}  // namespace
}  // namespace kvstow
