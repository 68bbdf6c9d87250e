// Every SIMD target that this machine runs gives the bytes of the scalar reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/entropy/bit_pack.h"
#include "kernels/entropy/loops.h"
#include "kernels/page/channel_rows.h"
#include "kernels/page/convert.h"
#include "kernels/page/loops.h"
#include "kernels/page/squared_error.h"
#include "kernels/quantize/levels.h"
#include "kernels/quantize/loops.h"
#include "kernels/transform/loops.h"
#include "tests/kernels/every_target.h"

namespace kvstow {
namespace {

TEST(SimdTest, ThereIsMoreThanOneTargetToCompare) {
  EXPECT_GT(hwy::SupportedAndGeneratedTargets().size(), 1u);
}

TEST(SimdTest, Every16BitPatternLoadsTheSame) {
  std::vector<uint16_t> bits(65536);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  const auto* raw = reinterpret_cast<const uint8_t*>(bits.data());
  OnEveryTarget<ConvertLoops>([&](const auto& best, const auto& reference) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      std::vector<float> expected(64), got(64);
      for (size_t i = 0; i < bits.size(); i += 64) {
        const bool finite = reference.load(dtype, raw + 2 * i, 64, expected.data());
        ASSERT_EQ(best.load(dtype, raw + 2 * i, 64, got.data()), finite) << i;
        if (finite) {
          ASSERT_TRUE(SameBits(got, expected)) << DTypeName(dtype) << " from " << i;
        }
      }
    }
  });
}

TEST(SimdTest, StoringRoundsTheSame) {
  std::mt19937 random(7);
  std::vector<float> values;
  // All exponents with random and with half-way mantissas.
  for (uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (int i = 0; i < 64; ++i) {
      auto mantissa = static_cast<uint32_t>(random() & 0x7fffff);
      if (i % 4 == 0) mantissa = (mantissa & ~0x1fffu) | 0x1000;
      if (i % 4 == 1) mantissa = (mantissa & ~0xffffu) | 0x8000;
      const uint32_t sign = random() & 0x80000000;
      values.push_back(std::bit_cast<float>(sign | exponent << 23 | mantissa));
    }
  }
  OnEveryTarget<ConvertLoops>([&](const auto& best, const auto& reference) {
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
      std::vector<uint8_t> expected(values.size() * DTypeBytes(dtype)), got(expected.size());
      reference.store(dtype, values.data(), values.size(), expected.data());
      best.store(dtype, values.data(), values.size(), got.data());
      EXPECT_TRUE(SameBits(got, expected)) << DTypeName(dtype);
    }
  });
}

TEST(SimdTest, TheLargestMagnitudeIsNaNWhereverOneIs) {
  OnEveryTarget([] {
    for (const size_t count : {1, 7, 16, 67}) {
      std::vector<float> values = ValuesOfAllSizes(count, 5);
      const auto larger = [](float a, float b) { return std::abs(a) < std::abs(b); };
      EXPECT_EQ(LargestMagnitude(values.data(), count),
                std::abs(*std::max_element(values.begin(), values.end(), larger)));
      for (size_t at = 0; at < count; ++at) {
        for (const float odd :
             {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
          std::vector<float> bad = values;
          bad[count - 1 - at] = std::numeric_limits<float>::infinity();
          EXPECT_TRUE(std::isinf(LargestMagnitude(bad.data(), count)));
          bad[at] = odd;
          EXPECT_TRUE(std::isnan(LargestMagnitude(bad.data(), count))) << at << " of " << count;
        }
      }
    }
  });
  EXPECT_EQ(LargestMagnitude(nullptr, 0), 0);
}

TEST(SimdTest, BytesSplitAndMergeTheSame) {
  std::mt19937 random(4);
  std::vector<uint8_t> raw(4 * 300 + 1);
  for (uint8_t& byte : raw) byte = static_cast<uint8_t>(random());
  OnEveryTarget<BytePlaneLoops>([&](const auto& best, const auto& reference) {
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF8E4M3}) {
      for (const size_t count : {0, 1, 15, 64, 67, 299}) {
        const size_t bytes = DTypeBytes(dtype);
        std::vector<uint8_t> split(bytes * count), expected(split.size()), back(split.size());
        std::vector<uint8_t*> planes, expected_planes;
        for (size_t p = 0; p < bytes; ++p) {
          planes.push_back(split.data() + p * count);
          expected_planes.push_back(expected.data() + p * count);
        }
        best.split(dtype, raw.data() + 1, count, planes.data());
        reference.split(dtype, raw.data() + 1, count, expected_planes.data());
        ASSERT_EQ(split, expected) << DTypeName(dtype) << " " << count;
        const std::vector<const uint8_t*> in(planes.begin(), planes.end());
        for (const auto merge : {best.merge, reference.merge}) {
          back.assign(back.size(), 0);
          merge(dtype, in.data(), count, back.data());
          ASSERT_TRUE(std::equal(back.begin(), back.end(), raw.begin() + 1)) << DTypeName(dtype);
        }
      }
    }
  });
}

TEST(SimdTest, ShortAndUnalignedArraysConvertTheSame) {
  const std::vector<float> values = ValuesOfAllSizes(70, 3);
  OnEveryTarget<ConvertLoops>([&](const auto& best, const auto& reference) {
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
      for (size_t count = 0; count <= 67; ++count) {
        std::vector<uint8_t> expected(count * 4 + 3, 9), got = expected;
        reference.store(dtype, values.data() + 1, count, expected.data() + 1);
        best.store(dtype, values.data() + 1, count, got.data() + 1);
        ASSERT_TRUE(SameBits(got, expected)) << DTypeName(dtype) << " " << count;
        std::vector<float> back(count + 1, 7), back_expected = back;
        EXPECT_TRUE(reference.load(dtype, got.data() + 1, count, back_expected.data()));
        EXPECT_TRUE(best.load(dtype, got.data() + 1, count, back.data()));
        ASSERT_TRUE(SameBits(back, back_expected)) << DTypeName(dtype) << " " << count;
      }
    }
  });
}

TEST(SimdTest, StreamsAnyBytes) {
  std::vector<uint8_t> from(300);
  std::iota(from.begin(), from.end(), 0);
  OnEveryTarget([&] {
    for (size_t begin = 0; begin < 70; ++begin) {
      for (const size_t count : {0, 1, 15, 63, 64, 65, 130, 200}) {
        std::vector<uint8_t> to(300, 9), expected = to;
        std::copy_n(from.begin(), count, expected.begin() + static_cast<ptrdiff_t>(begin));
        StreamBytes(from.data(), count, to.data() + begin);
        FinishStreams();
        EXPECT_EQ(to, expected) << begin << " + " << count;
      }
    }
  });
}

TEST(SimdTest, HadamardIsTheSameAndItsOwnInverse) {
  OnEveryTarget<HadamardLoops>([&](const auto& best, const auto& reference) {
    for (const size_t dim : {1, 2, 3, 7, 16, 32, 64, 80, 96, 128, 192, 256, 576, 1024}) {
      const std::vector<float> values = ValuesOfAllSizes(5 * dim, 5);
      std::vector<float> signs(dim);
      for (size_t i = 0; i < dim; ++i) signs[i] = i % 3 == 1 ? -1.0f : 1.0f;
      std::vector<float> got = values, expected = values;
      best.blocks(5, dim, got.data(), signs.data(), nullptr);
      reference.blocks(5, dim, expected.data(), signs.data(), nullptr);
      EXPECT_TRUE(SameBits(got, expected)) << dim;
      best.blocks(5, dim, got.data(), nullptr, signs.data());
      reference.blocks(5, dim, expected.data(), nullptr, signs.data());
      EXPECT_TRUE(SameBits(got, expected)) << dim;
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], values[i], 1e-1) << dim;
    }
  });
}

TEST(SimdTest, VectorCodesAreTheSame) {
  OnEveryTarget([&] {
    for (const size_t dim : {1, 3, 7, 16, 64, 80, 100}) {
      const size_t count = 40, n = count * dim;
      std::vector<float> values = ValuesOfAllSizes(n, 9), tops(count), expected_tops(count);
      std::fill_n(values.begin(), dim, 0.0f);
      EXPECT_TRUE(MagnitudeLoops::Best().tops(values.data(), count, dim, tops.data()));
      EXPECT_TRUE(
          MagnitudeLoops::Reference().tops(values.data(), count, dim, expected_tops.data()));
      ASSERT_TRUE(SameBits(tops, expected_tops)) << dim;

      std::vector<uint8_t> codes(n), expected_codes(n);
      std::vector<float> back(n), expected(n);
      MinifloatLoops::Best().encode(values.data(), count, dim, tops.data(), codes.data());
      MinifloatLoops::Reference().encode(values.data(), count, dim, tops.data(),
                                         expected_codes.data());
      ASSERT_TRUE(SameBits(codes, expected_codes)) << dim;
      EXPECT_TRUE(
          MinifloatLoops::Best().decode(codes.data(), count, dim, tops.data(), back.data()));
      EXPECT_TRUE(MinifloatLoops::Reference().decode(codes.data(), count, dim, tops.data(),
                                                     expected.data()));
      ASSERT_TRUE(SameBits(back, expected)) << dim;
      for (size_t at : {size_t{0}, n / 2, n - 1}) {
        std::vector<uint8_t> damaged = codes;
        damaged[at] |= 0x7f;
        EXPECT_FALSE(
            MinifloatLoops::Best().decode(damaged.data(), count, dim, tops.data(), back.data()));
      }

      for (uint32_t bits = 1; bits <= 8; ++bits) {
        const std::vector<float> centroids = LevelCentroids(bits);
        LevelLoops::Best().encode(values.data(), count, dim, tops.data(), bits, codes.data());
        LevelLoops::Reference().encode(values.data(), count, dim, tops.data(), bits,
                                       expected_codes.data());
        ASSERT_TRUE(SameBits(codes, expected_codes)) << dim << ", " << bits << " bits";
        LevelLoops::Best().decode(codes.data(), count, dim, tops.data(), bits, centroids.data(),
                                  back.data());
        LevelLoops::Reference().decode(codes.data(), count, dim, tops.data(), bits,
                                       centroids.data(), expected.data());
        ASSERT_TRUE(SameBits(back, expected)) << dim << ", " << bits << " bits";
      }
    }
  });
}

TEST(SimdTest, CodebooksCodeTheSame) {
  const std::vector<float> x = ValuesOfAllSizes(300, 1);
  for (const size_t size : {2, 3, 4, 8, 13, 16, 17}) {
    std::vector<float> entries = ValuesOfAllSizes(size, 2);
    std::sort(entries.begin(), entries.end());
    OnEveryTarget<CodebookLoops>([&](const auto& best, const auto& reference) {
      for (const size_t count : {0, 1, 7, 8, 15, 64, 80, 128, 299}) {
        std::vector<uint8_t> codes(count), expected_codes(count);
        best.nearest(entries, x.data(), count, 1.5f, codes.data());
        reference.nearest(entries, x.data(), count, 1.5f, expected_codes.data());
        ASSERT_TRUE(SameBits(codes, expected_codes)) << size << " entries, " << count;
        std::vector<float> back(count), expected(count);
        best.scaled(entries, codes.data(), count, 0.3f, back.data());
        reference.scaled(entries, codes.data(), count, 0.3f, expected.data());
        ASSERT_TRUE(SameBits(back, expected)) << size << " entries, " << count;
        ASSERT_EQ(best.squared_length(x.data(), count), reference.squared_length(x.data(), count))
            << count;
      }
    });
  }
}

TEST(SimdTest, TopsBeyondFp16AreRefused) {
  OnEveryTarget([&] {
    for (size_t at = 0; at < 37; ++at) {
      std::vector<float> values(37, 1.0f), top(1);
      values[at] = -65519.0f;
      EXPECT_TRUE(MagnitudeLoops::Best().tops(values.data(), 1, 37, top.data()));
      EXPECT_EQ(top[0], 65504.0f);
      values[at] = -65520.0f;
      EXPECT_FALSE(MagnitudeLoops::Best().tops(values.data(), 1, 37, top.data()));
    }
  });
}

TEST(SimdTest, SquaredErrorsAddInTheSameOrder) {
  const std::vector<float> a = ValuesOfAllSizes(5000, 1), b = ValuesOfAllSizes(5000, 2), zero(5000);
  OnEveryTarget([&] {
    for (const size_t count : {0, 1, 15, 16, 17, 63, 1023, 1024, 1025, 1050, 4999}) {
      EXPECT_EQ(SquaredError(a.data(), b.data(), count),
                SquaredErrorLoops::Reference().sum(a.data(), b.data(), count, 0))
          << count;
      EXPECT_EQ(SquaredSum(a.data(), count),
                SquaredErrorLoops::Reference().sum(a.data(), zero.data(), count, 0));
    }
  });
}

TEST(SimdTest, BitsPackTheSameAndComeBack) {
  std::mt19937 random(1);
  OnEveryTarget<BitPackLoops>([&](const auto& best, const auto& reference) {
    for (uint32_t bits = 1; bits <= 8; ++bits) {
      for (size_t count = 0; count < 300; ++count) {
        std::vector<uint8_t> codes(count), back(count), back_reference(count);
        for (uint8_t& code : codes) code = static_cast<uint8_t>(random() & ((1u << bits) - 1));
        std::vector<uint8_t> packed(PackedBytes(count, bits), 0xee), expected = packed;
        best.pack(codes.data(), count, bits, packed.data());
        reference.pack(codes.data(), count, bits, expected.data());
        ASSERT_EQ(packed, expected) << bits << " bits, " << count;
        best.unpack(packed.data(), count, bits, back.data());
        reference.unpack(packed.data(), count, bits, back_reference.data());
        ASSERT_EQ(back, codes) << bits << " bits, " << count;
        ASSERT_EQ(back_reference, codes) << bits << " bits, " << count;
      }
    }
  });
}

}  // namespace
}  // namespace kvstow
