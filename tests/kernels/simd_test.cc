// Every SIMD target that this machine runs gives the bytes of the scalar reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/convert.h"
#include "kernels/entropy/bit_pack.h"
#include "kernels/quantize/affine.h"
#include "kernels/quantize/codebook.h"
#include "kernels/quantize/levels.h"
#include "kernels/quantize/magnitude.h"
#include "kernels/quantize/minifloat.h"
#include "kernels/squared_error.h"
#include "kernels/transform/byte_planes.h"
#include "kernels/transform/hadamard.h"
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
  OnEveryTarget([&] {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      std::vector<float> expected(64), got(64);
      for (size_t i = 0; i < bits.size(); i += 64) {
        const bool finite = LoadFloatsReference(dtype, raw + 2 * i, 64, expected.data());
        ASSERT_EQ(LoadFloats(dtype, raw + 2 * i, 64, got.data()), finite) << i;
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
  OnEveryTarget([&] {
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
      std::vector<uint8_t> expected(values.size() * DTypeBytes(dtype)), got(expected.size());
      StoreFloatsReference(dtype, values.data(), values.size(), expected.data());
      StoreFloats(dtype, values.data(), values.size(), got.data());
      EXPECT_TRUE(SameBits(got, expected)) << DTypeName(dtype);
    }
  });
}

TEST(SimdTest, BytesSplitAndMergeTheSame) {
  std::mt19937 random(4);
  std::vector<uint8_t> raw(4 * 300 + 1);
  for (uint8_t& byte : raw) byte = static_cast<uint8_t>(random());
  OnEveryTarget([&] {
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF8E4M3}) {
      for (const size_t count : {0, 1, 15, 64, 67, 299}) {
        const size_t bytes = DTypeBytes(dtype);
        std::vector<uint8_t> split(bytes * count), expected(split.size()), back(split.size());
        std::vector<uint8_t*> planes, expected_planes;
        for (size_t p = 0; p < bytes; ++p) {
          planes.push_back(split.data() + p * count);
          expected_planes.push_back(expected.data() + p * count);
        }
        SplitBytes(dtype, raw.data() + 1, count, planes);
        SplitBytesReference(dtype, raw.data() + 1, count, expected_planes);
        ASSERT_EQ(split, expected) << DTypeName(dtype) << " " << count;
        const std::vector<const uint8_t*> in(planes.begin(), planes.end());
        for (const auto merge : {MergeBytes, MergeBytesReference}) {
          back.assign(back.size(), 0);
          merge(dtype, in, count, back.data());
          ASSERT_TRUE(std::equal(back.begin(), back.end(), raw.begin() + 1)) << DTypeName(dtype);
        }
      }
    }
  });
}

TEST(SimdTest, ShortAndUnalignedArraysConvertTheSame) {
  const std::vector<float> values = ValuesOfAllSizes(70, 3);
  OnEveryTarget([&] {
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
      for (size_t count = 0; count <= 67; ++count) {
        std::vector<uint8_t> expected(count * 4 + 3, 9), got = expected;
        StoreFloatsReference(dtype, values.data() + 1, count, expected.data() + 1);
        StoreFloats(dtype, values.data() + 1, count, got.data() + 1);
        ASSERT_TRUE(SameBits(got, expected)) << DTypeName(dtype) << " " << count;
        std::vector<float> back(count + 1, 7), back_expected = back;
        EXPECT_TRUE(LoadFloatsReference(dtype, got.data() + 1, count, back_expected.data()));
        EXPECT_TRUE(LoadFloats(dtype, got.data() + 1, count, back.data()));
        ASSERT_TRUE(SameBits(back, back_expected)) << DTypeName(dtype) << " " << count;
      }
    }
  });
}

struct Coded {
  std::vector<float> steps, minima, decoded;
  std::vector<uint8_t> codes;
};

TEST(SimdTest, AffineCodesTheSame) {
  const AffineGroups shapes[] = {{300, 64, 64, 8}, {7, 80, 64, 8},  {33, 96, 32, 4},
                                 {5, 7, 7, 2},     {1, 1, 1, 8},    {70, 3, 2, 3},
                                 {40, 192, 32, 4}, {9, 65, 9, 8},   {2, 576, 64, 5},
                                 {130, 17, 32, 1}, {1, 999, 999, 8}};
  OnEveryTarget([&] {
    for (const AffineGroups& g : shapes) {
      const std::vector<float> values = ValuesOfAllSizes(g.rows * g.width, 11);
      const auto code = [&](auto encode, auto decode) {
        Coded c;
        c.steps.resize(values.size());
        c.minima.resize(values.size());
        c.codes.resize(values.size());
        c.decoded.resize(values.size());
        EXPECT_TRUE(encode(g, values.data(), c.steps.data(), c.minima.data(), c.codes.data()));
        decode(g, c.steps.data(), c.minima.data(), c.codes.data(), c.decoded.data());
        return c;
      };
      const auto expect_same = [&](const Coded& a, const Coded& b) {
        EXPECT_TRUE(SameBits(a.steps, b.steps)) << g.rows << " x " << g.width;
        EXPECT_TRUE(SameBits(a.minima, b.minima)) << g.rows << " x " << g.width;
        EXPECT_TRUE(SameBits(a.codes, b.codes)) << g.rows << " x " << g.width;
        EXPECT_TRUE(SameBits(a.decoded, b.decoded)) << g.rows << " x " << g.width;
      };
      expect_same(code(AffineEncodeRows, AffineDecodeRows),
                  code(AffineEncodeRowsReference, AffineDecodeRowsReference));
      expect_same(code(AffineEncodeColumns, AffineDecodeColumns),
                  code(AffineEncodeColumnsReference, AffineDecodeColumnsReference));
    }
  });
}

TEST(SimdTest, AffineCodesRawValuesTheSame) {
  const AffineRaw shapes[] = {{DType::kF16, 100, 64, 8}, {DType::kBF16, 41, 64, 8},
                              {DType::kF16, 7, 192, 4},  {DType::kBF16, 1, 1024, 3},
                              {DType::kF16, 33, 128, 1}, {DType::kF16, 8, 64, 2}};
  OnEveryTarget([&] {
    for (const AffineRaw& g : shapes) {
      SCOPED_TRACE(g.groups);
      const size_t count = g.groups * g.group;
      std::vector<float> values = ValuesOfAllSizes(count, 21);
      std::fill_n(values.begin(), g.group, -1.5f);  // a constant, a denormal step
      if (g.groups > 2) {
        for (size_t i = 0; i < g.group; ++i) values[g.group + i] = 1e-7f * static_cast<float>(i);
      }
      std::vector<uint8_t> page(2 * count + 1);
      uint8_t* const raw = page.data() + 1;
      StoreFloatsReference(g.dtype, values.data(), count, raw);
      const auto code = [&](auto encode, auto decode, auto measure) {
        std::vector<uint8_t> out(4 * g.groups + count), back(2 * count + 1);
        uint8_t *const s = out.data(), *const m = s + 2 * g.groups, *const codes = m + 2 * g.groups;
        EXPECT_TRUE(encode(g, raw, s, m, codes));
        std::vector<float> steps(g.groups), minima(g.groups);
        EXPECT_TRUE(LoadHalves(s, g.groups, steps.data()));
        EXPECT_TRUE(LoadHalves(m, g.groups, minima.data()));
        decode(g, steps.data(), minima.data(), codes, back.data() + 1);
        double energy = 3, error = 5;
        measure(g, raw, steps.data(), minima.data(), codes, &energy, &error);
        return std::tuple(out, back, energy, error);
      };
      EXPECT_EQ(
          code(AffineEncodeRaw, AffineDecodeRaw, AffineMeasureRaw),
          code(AffineEncodeRawReference, AffineDecodeRawReference, AffineMeasureRawReference));
      const uint16_t inf = g.dtype == DType::kF16 ? 0x7c00 : 0x7f80;
      for (const int odd : {0, 1, 0x8000, 0x8001, 0x7f, 0x807f}) {  // Inf and NaN of both signs
        for (size_t at = 0; at < count; at += 37) {
          std::vector<uint8_t> bad = page, out(4 * g.groups + count);
          const auto bits = static_cast<uint16_t>(inf ^ odd);
          std::memcpy(bad.data() + 1 + 2 * at, &bits, 2);
          EXPECT_FALSE(AffineEncodeRaw(g, bad.data() + 1, out.data(), out.data() + 2 * g.groups,
                                       out.data() + 4 * g.groups));
        }
      }
    }
  });
}

TEST(SimdTest, AffineCodesTurnedValuesTheSame) {
  struct Shape {
    AffineRaw g;
    size_t dim;
  };
  const Shape shapes[] = {{{DType::kF16, 100, 64, 4}, 64},   {{DType::kBF16, 41, 64, 8}, 64},
                          {{DType::kF16, 6, 64, 4}, 128},    {{DType::kBF16, 7, 128, 3}, 128},
                          {{DType::kF16, 18, 128, 1}, 256},  {{DType::kF16, 8, 64, 2}, 512},
                          {{DType::kBF16, 3, 1024, 4}, 1024}};
  OnEveryTarget([&] {
    for (const auto& [g, dim] : shapes) {
      SCOPED_TRACE(absl::StrCat(g.groups, " of ", g.group, " in vectors of ", dim));
      const size_t count = g.groups * g.group;
      std::vector<float> values = ValuesOfAllSizes(count, 21), signs(dim);
      std::fill_n(values.begin(), dim, 0.0f);  // a constant where it is turned
      for (size_t i = 0; i < dim; ++i) signs[i] = i % 3 == 1 ? -1.0f : 1.0f;
      std::vector<uint8_t> page(2 * count + 1);
      StoreFloatsReference(g.dtype, values.data(), count, page.data() + 1);
      const auto code = [&](auto encode, auto decode, const std::vector<uint8_t>& from) {
        std::vector<uint8_t> out(4 * g.groups + count), back(2 * count + 1);
        uint8_t *const s = out.data(), *const m = s + 2 * g.groups, *const codes = m + 2 * g.groups;
        double energy = 3, error = 5;
        if (!encode(g, AffineTurn{signs.data(), dim}, from.data() + 1, s, m, codes, &energy,
                    &error)) {
          return std::optional<
              std::tuple<std::vector<uint8_t>, std::vector<uint8_t>, double, double>>();
        }
        std::vector<float> steps(g.groups), minima(g.groups);
        EXPECT_TRUE(LoadHalves(s, g.groups, steps.data()));
        EXPECT_TRUE(LoadHalves(m, g.groups, minima.data()));
        decode(g, AffineTurn{signs.data(), dim}, steps.data(), minima.data(), codes,
               back.data() + 1);
        return std::optional(std::tuple(out, back, energy, error));
      };
      const auto fast = code(AffineEncodeTurned, AffineDecodeTurned, page);
      EXPECT_TRUE(fast.has_value());
      EXPECT_EQ(fast, code(AffineEncodeTurnedReference, AffineDecodeTurnedReference, page));
      const uint16_t inf = g.dtype == DType::kF16 ? 0x7c00 : 0x7f80;
      for (const int odd : {0, 1, 0x8000, 0x8001, 0x7f, 0x807f}) {  // Inf and NaN of both signs
        for (size_t at = 0; at < count; at += 37) {
          std::vector<uint8_t> bad = page;
          const auto bits = static_cast<uint16_t>(inf ^ odd);
          std::memcpy(bad.data() + 1 + 2 * at, &bits, 2);
          EXPECT_FALSE(code(AffineEncodeTurned, AffineDecodeTurned, bad).has_value());
        }
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

TEST(SimdTest, AffineRefusesTheSame) {
  const AffineGroups g{4, 40, 10, 1};
  OnEveryTarget([&] {
    for (const float odd : {65519.0f, 65520.0f, -65519.0f, -65520.0f, 1e38f}) {
      for (size_t at = 0; at < 160; at += 13) {
        std::vector<float> values(160, 1.0f), steps(160), minima(160);
        std::vector<uint8_t> codes(160);
        values[at] = odd;
        const auto run = [&](auto encode) {
          return encode(g, values.data(), steps.data(), minima.data(), codes.data());
        };
        EXPECT_EQ(run(AffineEncodeRows), run(AffineEncodeRowsReference)) << odd << " at " << at;
        EXPECT_EQ(run(AffineEncodeColumns), run(AffineEncodeColumnsReference)) << odd;
      }
    }
  });
}

TEST(SimdTest, HadamardIsTheSameAndItsOwnInverse) {
  OnEveryTarget([&] {
    for (const size_t dim : {1, 2, 3, 7, 16, 32, 64, 80, 96, 128, 192, 256, 576, 1024}) {
      const std::vector<float> values = ValuesOfAllSizes(5 * dim, 5);
      std::vector<float> signs(dim);
      for (size_t i = 0; i < dim; ++i) signs[i] = i % 3 == 1 ? -1.0f : 1.0f;
      std::vector<float> got = values, expected = values;
      HadamardBlocks(5, dim, got.data(), signs.data());
      HadamardBlocksReference(5, dim, expected.data(), signs.data());
      EXPECT_TRUE(SameBits(got, expected)) << dim;
      HadamardBlocks(5, dim, got.data(), nullptr, signs.data());
      HadamardBlocksReference(5, dim, expected.data(), nullptr, signs.data());
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
      EXPECT_TRUE(VectorTops(values.data(), count, dim, tops.data()));
      EXPECT_TRUE(VectorTopsReference(values.data(), count, dim, expected_tops.data()));
      ASSERT_TRUE(SameBits(tops, expected_tops)) << dim;

      std::vector<uint8_t> codes(n), expected_codes(n);
      std::vector<float> back(n), expected(n);
      MinifloatEncode(values.data(), count, dim, tops.data(), codes.data());
      MinifloatEncodeReference(values.data(), count, dim, tops.data(), expected_codes.data());
      ASSERT_TRUE(SameBits(codes, expected_codes)) << dim;
      EXPECT_TRUE(MinifloatDecode(codes.data(), count, dim, tops.data(), back.data()));
      EXPECT_TRUE(MinifloatDecodeReference(codes.data(), count, dim, tops.data(), expected.data()));
      ASSERT_TRUE(SameBits(back, expected)) << dim;
      for (size_t at : {size_t{0}, n / 2, n - 1}) {
        std::vector<uint8_t> damaged = codes;
        damaged[at] |= 0x7f;
        EXPECT_FALSE(MinifloatDecode(damaged.data(), count, dim, tops.data(), back.data()));
      }

      for (uint32_t bits = 1; bits <= 8; ++bits) {
        const std::vector<float> centroids = LevelCentroids(bits);
        LevelsEncode(values.data(), count, dim, tops.data(), bits, codes.data());
        LevelsEncodeReference(values.data(), count, dim, tops.data(), bits, expected_codes.data());
        ASSERT_TRUE(SameBits(codes, expected_codes)) << dim << ", " << bits << " bits";
        LevelsDecode(codes.data(), count, dim, tops.data(), bits, centroids.data(), back.data());
        LevelsDecodeReference(codes.data(), count, dim, tops.data(), bits, centroids.data(),
                              expected.data());
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
    OnEveryTarget([&] {
      for (const size_t count : {0, 1, 7, 8, 15, 64, 80, 128, 299}) {
        std::vector<uint8_t> codes(count), expected_codes(count);
        NearestEntries(entries, x.data(), count, 1.5f, codes.data());
        NearestEntriesReference(entries, x.data(), count, 1.5f, expected_codes.data());
        ASSERT_TRUE(SameBits(codes, expected_codes)) << size << " entries, " << count;
        std::vector<float> back(count), expected(count);
        ScaledEntries(entries, codes.data(), count, 0.3f, back.data());
        ScaledEntriesReference(entries, codes.data(), count, 0.3f, expected.data());
        ASSERT_TRUE(SameBits(back, expected)) << size << " entries, " << count;
        ASSERT_EQ(SquaredLength(x.data(), count), SquaredLengthReference(x.data(), count)) << count;
      }
    });
  }
}

TEST(SimdTest, TopsBeyondFp16AreRefused) {
  OnEveryTarget([&] {
    for (size_t at = 0; at < 37; ++at) {
      std::vector<float> values(37, 1.0f), top(1);
      values[at] = -65519.0f;
      EXPECT_TRUE(VectorTops(values.data(), 1, 37, top.data()));
      EXPECT_EQ(top[0], 65504.0f);
      values[at] = -65520.0f;
      EXPECT_FALSE(VectorTops(values.data(), 1, 37, top.data()));
    }
  });
}

TEST(SimdTest, SquaredErrorsAddInTheSameOrder) {
  const std::vector<float> a = ValuesOfAllSizes(5000, 1), b = ValuesOfAllSizes(5000, 2), zero(5000);
  OnEveryTarget([&] {
    for (const size_t count : {0, 1, 15, 16, 17, 63, 1023, 1024, 1025, 1050, 4999}) {
      EXPECT_EQ(SquaredError(a.data(), b.data(), count),
                SquaredErrorReference(a.data(), b.data(), count))
          << count;
      EXPECT_EQ(SquaredSum(a.data(), count), SquaredErrorReference(a.data(), zero.data(), count));
    }
  });
}

TEST(SimdTest, BitsPackTheSameAndComeBack) {
  std::mt19937 random(1);
  OnEveryTarget([&] {
    for (uint32_t bits = 1; bits <= 8; ++bits) {
      for (size_t count = 0; count < 300; ++count) {
        std::vector<uint8_t> codes(count), back(count), back_reference(count);
        for (uint8_t& code : codes) code = static_cast<uint8_t>(random() & ((1u << bits) - 1));
        std::vector<uint8_t> packed(PackedBytes(count, bits), 0xee), reference = packed;
        PackBits(codes.data(), count, bits, packed.data());
        PackBitsReference(codes.data(), count, bits, reference.data());
        ASSERT_EQ(packed, reference) << bits << " bits, " << count;
        UnpackBits(packed.data(), count, bits, back.data());
        UnpackBitsReference(packed.data(), count, bits, back_reference.data());
        ASSERT_EQ(back, codes) << bits << " bits, " << count;
        ASSERT_EQ(back_reference, codes) << bits << " bits, " << count;
      }
    }
  });
}

}  // namespace
}  // namespace kvstow
