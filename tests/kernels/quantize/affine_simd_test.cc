// Affine codes on every SIMD target that this machine runs: the bytes of the scalar reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/page/convert.h"
#include "kernels/page/loops.h"
#include "kernels/quantize/loops.h"
#include "tests/kernels/every_target.h"

namespace kvstow {
namespace {

struct Coded {
  std::vector<float> steps, minima, decoded;
  std::vector<uint8_t> codes;
};

TEST(AffineSimdTest, CodesTheSame) {
  const AffineGroups shapes[] = {{300, 64, 64, 8}, {7, 80, 64, 8},  {33, 96, 32, 4},
                                 {5, 7, 7, 2},     {1, 1, 1, 8},    {70, 3, 2, 3},
                                 {40, 192, 32, 4}, {9, 65, 9, 8},   {2, 576, 64, 5},
                                 {130, 17, 32, 1}, {1, 999, 999, 8}};
  OnEveryTarget<AffineLoops>([&](const auto& best, const auto& reference) {
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
      expect_same(code(best.encode_rows, best.decode_rows),
                  code(reference.encode_rows, reference.decode_rows));
      expect_same(code(best.encode_columns, best.decode_columns),
                  code(reference.encode_columns, reference.decode_columns));
    }
  });
}

TEST(AffineSimdTest, CodesRawValuesTheSame) {
  const AffineRaw shapes[] = {{DType::kF16, 100, 64, 8}, {DType::kBF16, 41, 64, 8},
                              {DType::kF16, 7, 192, 4},  {DType::kBF16, 1, 1024, 3},
                              {DType::kF16, 33, 128, 1}, {DType::kF16, 8, 64, 2}};
  OnEveryTarget<AffineRawLoops>([&](const auto& best, const auto& reference) {
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
      ConvertLoops::Reference().store(g.dtype, values.data(), count, raw);
      const auto code = [&](const AffineRawLoops& loops) {
        std::vector<uint8_t> out(4 * g.groups + count), back(2 * count + 1);
        uint8_t *const s = out.data(), *const m = s + 2 * g.groups, *const codes = m + 2 * g.groups;
        EXPECT_TRUE(loops.encode(g, raw, s, m, codes));
        std::vector<float> steps(g.groups), minima(g.groups);
        EXPECT_TRUE(LoadHalves(s, g.groups, steps.data()));
        EXPECT_TRUE(LoadHalves(m, g.groups, minima.data()));
        loops.decode(g, steps.data(), minima.data(), codes, back.data() + 1);
        double energy = 3, error = 5;
        loops.measure(g, raw, steps.data(), minima.data(), codes, &energy, &error);
        return std::tuple(out, back, energy, error);
      };
      EXPECT_EQ(code(best), code(reference));
      const uint16_t inf = g.dtype == DType::kF16 ? 0x7c00 : 0x7f80;
      for (const int odd : {0, 1, 0x8000, 0x8001, 0x7f, 0x807f}) {  // Inf and NaN of both signs
        for (size_t at = 0; at < count; at += 37) {
          std::vector<uint8_t> bad = page, out(4 * g.groups + count);
          const auto bits = static_cast<uint16_t>(inf ^ odd);
          std::memcpy(bad.data() + 1 + 2 * at, &bits, 2);
          EXPECT_FALSE(best.encode(g, bad.data() + 1, out.data(), out.data() + 2 * g.groups,
                                   out.data() + 4 * g.groups));
        }
      }
    }
  });
}

TEST(AffineSimdTest, CodesTurnedValuesTheSame) {
  struct Shape {
    AffineRaw g;
    size_t dim;
  };
  const Shape shapes[] = {{{DType::kF16, 100, 64, 4}, 64},   {{DType::kBF16, 41, 64, 8}, 64},
                          {{DType::kF16, 6, 64, 4}, 128},    {{DType::kBF16, 7, 128, 3}, 128},
                          {{DType::kF16, 18, 128, 1}, 256},  {{DType::kF16, 8, 64, 2}, 512},
                          {{DType::kBF16, 3, 1024, 4}, 1024}};
  OnEveryTarget<AffineTurnedLoops>([&](const auto& best, const auto& reference) {
    for (const Shape& shape : shapes) {
      const AffineRaw& g = shape.g;
      const size_t dim = shape.dim;
      SCOPED_TRACE(absl::StrCat(g.groups, " of ", g.group, " in vectors of ", dim));
      const size_t count = g.groups * g.group;
      std::vector<float> values = ValuesOfAllSizes(count, 21), signs(dim);
      std::fill_n(values.begin(), dim, 0.0f);  // a constant where it is turned
      for (size_t i = 0; i < dim; ++i) signs[i] = i % 3 == 1 ? -1.0f : 1.0f;
      std::vector<uint8_t> page(2 * count + 1);
      ConvertLoops::Reference().store(g.dtype, values.data(), count, page.data() + 1);
      const auto code = [&](const AffineTurnedLoops& loops, const std::vector<uint8_t>& from) {
        std::vector<uint8_t> out(4 * g.groups + count), back(2 * count + 1);
        uint8_t *const s = out.data(), *const m = s + 2 * g.groups, *const codes = m + 2 * g.groups;
        double energy = 3, error = 5;
        if (!loops.encode(g, AffineTurn{signs.data(), dim}, from.data() + 1, s, m, codes, &energy,
                          &error)) {
          return std::optional<
              std::tuple<std::vector<uint8_t>, std::vector<uint8_t>, double, double>>();
        }
        std::vector<float> steps(g.groups), minima(g.groups);
        EXPECT_TRUE(LoadHalves(s, g.groups, steps.data()));
        EXPECT_TRUE(LoadHalves(m, g.groups, minima.data()));
        loops.decode(g, AffineTurn{signs.data(), dim}, steps.data(), minima.data(), codes,
                     back.data() + 1);
        return std::optional(std::tuple(out, back, energy, error));
      };
      const auto fast = code(best, page);
      EXPECT_TRUE(fast.has_value());
      EXPECT_EQ(fast, code(reference, page));
      const uint16_t inf = g.dtype == DType::kF16 ? 0x7c00 : 0x7f80;
      for (const int odd : {0, 1, 0x8000, 0x8001, 0x7f, 0x807f}) {  // Inf and NaN of both signs
        for (size_t at = 0; at < count; at += 37) {
          std::vector<uint8_t> bad = page;
          const auto bits = static_cast<uint16_t>(inf ^ odd);
          std::memcpy(bad.data() + 1 + 2 * at, &bits, 2);
          EXPECT_FALSE(code(best, bad).has_value());
        }
      }
    }
  });
}

TEST(AffineSimdTest, RefusesTheSame) {
  const AffineGroups g{4, 40, 10, 1};
  OnEveryTarget<AffineLoops>([&](const auto& best, const auto& reference) {
    for (const float odd : {65519.0f, 65520.0f, -65519.0f, -65520.0f, 1e38f}) {
      for (size_t at = 0; at < 160; at += 13) {
        std::vector<float> values(160, 1.0f), steps(160), minima(160);
        std::vector<uint8_t> codes(160);
        values[at] = odd;
        const auto run = [&](auto encode) {
          return encode(g, values.data(), steps.data(), minima.data(), codes.data());
        };
        EXPECT_EQ(run(best.encode_rows), run(reference.encode_rows)) << odd << " at " << at;
        EXPECT_EQ(run(best.encode_columns), run(reference.encode_columns)) << odd;
      }
    }
  });
}

}  // namespace
}  // namespace kvstow
