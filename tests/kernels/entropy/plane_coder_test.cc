#include "kernels/entropy/plane_coder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "kernels/entropy/plane_loops.h"
#include "kernels/entropy/plane_tables.h"
#include "kernels/entropy/rans.h"
#include "tests/kernels/every_target.h"

namespace kvstow {
namespace {

// Coefficients with spreads from a hundredth of the base step to 300 times it.
struct Sample {
  PlaneLayout layout;
  uint32_t tokens;
  // [width, stride] at level `finest`, tokens in their places; behind the tokens is rubbish.
  std::vector<int32_t> q;
  std::vector<uint8_t> energies;

  size_t stride() const { return PlaneStride(tokens); }
  std::vector<std::span<const uint8_t>> Spans(const std::vector<std::string>& bodies) const {
    std::vector<std::span<const uint8_t>> spans;
    for (const std::string& body : bodies) spans.push_back(AsBytes(body));
    return spans;
  }
};

PlaneCoder CoderOf(const Sample& s) {
  return {s.layout, UniversalPlaneTables(), PlaneLookups::Universal()};
}

Sample MakeSample(uint32_t tokens, uint32_t width, bool classed, uint32_t finest,
                  uint32_t tokens_per_stream, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Sample s{.tokens = tokens};
  s.layout.levels = finest + 1;
  s.layout.tokens_per_stream = tokens_per_stream;
  for (uint32_t i = 0; i < width; ++i)
    s.layout.rows.push_back(static_cast<int16_t>(random() % 60 - 10));
  s.layout.classed = classed;
  for (uint32_t t = 0; classed && t < tokens; ++t)
    s.energies.push_back(static_cast<uint8_t>(random() % kPlaneEnergies));
  const PlaneOrder order = OrderByClass(s.energies, tokens_per_stream);
  for (uint32_t i = 0; i < width; ++i) {
    for (uint32_t p = 0; p < s.stride(); ++p) {
      const int shift = !classed || p >= tokens ? 0 : 2 * (s.energies[order.tokens[p]] - 8);
      const double sigma = std::exp2((s.layout.rows[i] + shift - kPlaneUnitRow) / 4.0 + finest);
      s.q.push_back(static_cast<int32_t>(
          std::clamp(normal(random) * sigma, -kPlaneMaxMagnitude + 1.0, kPlaneMaxMagnitude - 1.0)));
    }
  }
  return s;
}

// Every tilt that there is.
std::vector<int8_t> Tilts(size_t width) {
  std::vector<int8_t> tilts(width);
  for (size_t i = 0; i < width; ++i)
    tilts[i] = static_cast<int8_t>(static_cast<int>(i % (2 * kMaxPlaneTilt + 1)) - kMaxPlaneTilt);
  return tilts;
}

int32_t AtLevel(int32_t q, uint32_t finest, uint32_t level) {
  const int32_t magnitude = std::abs(q) >> (finest - level);
  return q < 0 ? -magnitude : magnitude;
}

class PlaneCoderTest : public testing::TestWithParam<uint32_t> {};

TEST_P(PlaneCoderTest, EveryLevelIsTheLeadingBitsOfTheFinest) {
  const uint32_t finest = 3;
  for (const auto& [classed, tilted] :
       {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
    Sample s = MakeSample(117, 53, classed, finest, GetParam(), classed ? 8 : 7);
    if (tilted) s.layout.tilts = Tilts(53);
    const PlaneCoder coder = CoderOf(s);
    const std::vector<std::string> bodies = coder.Encode(s.q, s.energies, s.tokens);
    ASSERT_EQ(bodies.size(), finest + 1);
    const auto spans = s.Spans(bodies);
    for (uint32_t level = 0; level <= finest; ++level) {
      std::vector<int32_t> got(s.q.size(), -1);
      std::vector<uint8_t> energies(s.energies.size());
      const absl::Status status =
          coder.Decode(std::span(spans).first(level + 1), s.tokens, {0, s.tokens}, got, energies);
      ASSERT_TRUE(status.ok()) << status;
      for (size_t k = 0; k < got.size(); ++k)
        ASSERT_EQ(got[k], k % s.stride() >= s.tokens ? 0 : AtLevel(s.q[k], finest, level))
            << "level " << level << " value " << k;
      EXPECT_EQ(energies, s.energies);
    }
  }
}

TEST_P(PlaneCoderTest, TokenRangesDecodeAlone) {
  const uint32_t each = GetParam();
  const Sample s = MakeSample(141, 20, true, 1, each, 11);
  const PlaneCoder coder = CoderOf(s);
  const std::vector<std::string> bodies = coder.Encode(s.q, s.energies, s.tokens);
  const auto spans = s.Spans(bodies);
  for (uint32_t first = 0; first < s.tokens; first += 5) {
    const TokenRange range = WholeStreams({first, 3}, s.tokens, each);
    ASSERT_LE(range.first, first);
    ASSERT_GE(range.first + range.count, std::min(first + 3, s.tokens));
    const size_t stride = PlaneStride(range.count);
    std::vector<int32_t> got(20 * stride);
    std::vector<uint8_t> energies(range.count);
    ASSERT_TRUE(coder.Decode(spans, s.tokens, range, got, energies).ok());
    for (size_t i = 0; i < 20; ++i) {
      const auto want = s.q.begin() + static_cast<ptrdiff_t>(i * s.stride() + range.first);
      EXPECT_TRUE(
          std::equal(want, want + range.count, got.begin() + static_cast<ptrdiff_t>(i * stride)))
          << first;
    }
  }
}

TEST(PlaneCoder, SomeCoefficientsDequantizeAlone) {
  for (const bool classed : {false, true}) {
    const Sample s = MakeSample(117, 53, classed, 2, 64, 3);
    const std::vector<int8_t> shifts = OrderByClass(s.energies, 64).shifts;
    const PlaneCoder coder = CoderOf(s);
    std::vector<float> steps(coder.width());
    for (size_t i = 0; i < steps.size(); ++i) steps[i] = 0.1f + static_cast<float>(i);
    std::vector<float> all(s.q.size());
    coder.Dequantize(s.q, shifts, s.tokens, 1, steps, all);
    uint32_t first = 0;
    for (const uint32_t end : {5u, 20u, 50u, 53u}) {
      std::vector<float> rows((end - first) * s.stride());
      coder.DequantizeRows(std::span(s.q).subspan(first * s.stride(), rows.size()), shifts,
                           s.tokens, 1, std::span(steps).subspan(first, end - first), first,
                           end - first, rows);
      const auto want = all.begin() + static_cast<ptrdiff_t>(first * s.stride());
      EXPECT_TRUE(std::equal(rows.begin(), rows.end(), want))
          << first << (classed ? "" : ", plain");
      first = end;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(TokensPerStream, PlaneCoderTest, testing::Values(16, 64, 256));

using Words = std::vector<std::vector<uint16_t>>;  // of a stream's levels

Words Finished(std::vector<RansEncoder> encoders) {
  Words words(encoders.size());
  for (size_t level = 0; level < words.size(); ++level) encoders[level].Finish(words[level]);
  return words;
}

// The words of the loops that define the bytes.
Words WordsOfTheReference(const PlaneStream& stream, const std::vector<int32_t>& q) {
  std::vector<RansEncoder> encoders(stream.levels);
  PlaneEncodeLoops::Reference().encode({stream, q.data(), encoders}, nullptr);
  return Finished(std::move(encoders));
}

std::vector<RansDecoder> DecodersOf(const Words& words, size_t levels) {
  std::vector<RansDecoder> decoders;
  for (size_t level = 0; level < levels; ++level) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(words[level].data());
    decoders.emplace_back(std::span(bytes, 2 * words[level].size()));
  }
  return decoders;
}

// Alone, and side by side with a stream of other values.
void ExpectTheBytesOfTheReference(const PlaneStream& stream, const std::vector<int32_t>& q) {
  std::vector<int32_t> opposite = q;
  for (int32_t& value : opposite) value = -value;
  const Words words = WordsOfTheReference(stream, q);
  const Words others = WordsOfTheReference(stream, opposite);
  std::vector<RansEncoder> alone(stream.levels), one(stream.levels), two(stream.levels);
  PlaneEncodeLoops::Best().encode({stream, q.data(), alone}, nullptr);
  EXPECT_EQ(Finished(std::move(alone)), words);
  const PlaneEncoding other{stream, opposite.data(), two};
  PlaneEncodeLoops::Best().encode({stream, q.data(), one}, &other);
  EXPECT_EQ(Finished(std::move(one)), words);
  EXPECT_EQ(Finished(std::move(two)), others);
  for (const size_t levels : {3, 2, 1}) {
    std::vector<int32_t> want(q.size()), want_other(q.size()), got(q.size(), -1);
    std::vector<RansDecoder> decoders = DecodersOf(words, levels);
    ASSERT_TRUE(PlaneDecodeLoops::Reference().decode({stream, decoders, want.data()}, nullptr));
    decoders = DecodersOf(others, levels);
    ASSERT_TRUE(
        PlaneDecodeLoops::Reference().decode({stream, decoders, want_other.data()}, nullptr));
    decoders = DecodersOf(words, levels);
    ASSERT_TRUE(PlaneDecodeLoops::Best().decode({stream, decoders, got.data()}, nullptr));
    EXPECT_TRUE(std::ranges::all_of(decoders, &RansDecoder::AtEnd));
    EXPECT_EQ(got, want);
    std::vector<int32_t> first(q.size(), -1), second(q.size(), -1);
    decoders = DecodersOf(words, levels);
    std::vector<RansDecoder> along = DecodersOf(others, levels);
    const PlaneDecoding beside{stream, along, second.data()};
    ASSERT_TRUE(PlaneDecodeLoops::Best().decode({stream, decoders, first.data()}, &beside));
    EXPECT_TRUE(std::ranges::all_of(decoders, &RansDecoder::AtEnd));
    EXPECT_TRUE(std::ranges::all_of(along, &RansDecoder::AtEnd));
    EXPECT_EQ(first, want);
    EXPECT_EQ(second, want_other);
  }
}

TEST(PlaneLoops, EverySimdTargetGivesTheBytesOfTheReference) {
  OnEveryTarget<PlaneDecodeLoops>([&](const PlaneDecodeLoops& best,
                                      const PlaneDecodeLoops& reference) {
    for (const uint32_t tokens : {1u, 16u, 39u, 128u}) {
      for (const auto& [classed, tilted] : {std::pair{false, false}, {true, false}, {true, true}}) {
        const Sample s = MakeSample(tokens, 70, classed, 2, 256, tokens);
        const std::vector<int8_t> shifts = OrderByClass(s.energies, 256).shifts;
        const std::vector<int8_t> tilts = Tilts(tilted ? s.layout.rows.size() : 0);
        const PlaneStream stream{.rows = s.layout.rows,
                                 .tables = &UniversalPlaneTables(),
                                 .lookups = &PlaneLookups::Universal(),
                                 .levels = 3,
                                 .tokens = tokens,
                                 .stride = s.stride(),
                                 .shifts = classed ? shifts.data() : nullptr,
                                 .tilts = tilts};
        SCOPED_TRACE(absl::StrCat(tokens, " tokens", classed ? ", classed" : ""));
        ExpectTheBytesOfTheReference(stream, s.q);
        const Words words = WordsOfTheReference(stream, s.q);
        std::vector<int32_t> want(s.q.size());
        std::vector<float> expected(s.q.size()), coefficients(s.q.size());
        for (const size_t levels : {3, 2, 1}) {
          std::vector<RansDecoder> decoders = DecodersOf(words, levels);
          ASSERT_TRUE(reference.decode({stream, decoders, want.data()}, nullptr));
          const std::vector<float> step = {0.37f};
          reference.dequantize(stream, want.data(), levels - 1, step, expected.data());
          best.dequantize(stream, want.data(), levels - 1, step, coefficients.data());
          for (size_t k = 0; k < want.size(); ++k) {
            if (k % s.stride() < tokens) {
              ASSERT_EQ(coefficients[k], expected[k]) << k;
            }
          }
        }
      }
    }
  });
}

TEST(PlaneCoder, DamageIsDataLossOrOtherValuesAndNeverACrash) {
  const Sample s = MakeSample(84, 20, true, 1, 32, 3);
  const PlaneCoder coder = CoderOf(s);
  std::vector<std::string> bodies = coder.Encode(s.q, s.energies, s.tokens);
  std::mt19937 random(1);
  int lost = 0, tries = 0;
  for (std::string& body : bodies) {
    const auto decode = [&](std::string bytes) {
      const std::string whole = std::exchange(body, std::move(bytes));
      const auto spans = s.Spans(bodies);
      std::vector<int32_t> got(s.q.size());
      std::vector<uint8_t> energies(s.energies.size());
      const absl::Status status = coder.Decode(spans, s.tokens, {0, s.tokens}, got, energies);
      body = whole;
      return status;
    };
    ASSERT_TRUE(decode(body).ok());
    for (size_t size = 0; size < body.size(); ++size) {
      EXPECT_EQ(decode(body.substr(0, size)).code(), absl::StatusCode::kDataLoss) << size;
    }
    EXPECT_EQ(decode(body + "x").code(), absl::StatusCode::kDataLoss);
    for (size_t at = 0; at < body.size(); ++at, ++tries) {
      std::string bad = body;
      bad[at] = static_cast<char>(bad[at] ^ (1 << (random() % 8)));
      const absl::Status status = decode(bad);
      const bool other_order = at == 4 && absl::IsFailedPrecondition(status);
      EXPECT_TRUE(status.ok() || absl::IsDataLoss(status) || other_order) << status;
      lost += !status.ok();
    }
  }
  EXPECT_GT(lost, tries * 8 / 10);  // the digest of the segment finds the others
}

// The bits that a level costs by its tables.
double CrossEntropy(const Sample& s, uint32_t finest, uint32_t level, const LevelTables& tables) {
  double bits = 0;
  for (size_t k = 0; k < s.q.size(); ++k) {
    const int row =
        std::clamp(s.layout.rows[k / s.stride()] + 4 * static_cast<int>(level == 0 ? 0 : level - 1),
                   0, kPlaneRows - 1);
    const int32_t m = std::abs(AtLevel(s.q[k], finest, level));
    double p;
    if (level == 0) {
      p = tables.base[row][m] / (m > 0 ? 2. : 1.);
    } else {
      const double zero = tables.zero[row][std::min(m >> 1, 3)];
      p = (m & 1) == 0 ? zero : (kRansTotal - zero) / (m == 1 ? 2. : 1.);
    }
    bits += std::log2(kRansTotal / p);
  }
  return bits;
}

TEST(PlaneCoder, CostsWhatTheTablesSay) {
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  for (const int row : {4, 8, 12, 16, 20}) {
    Sample s{.layout = {.rows = std::vector<int16_t>(1000, static_cast<int16_t>(row)),
                        .levels = 3,
                        .tokens_per_stream = 64},
             .tokens = 64};
    const double sigma = std::exp2((row - kPlaneUnitRow) / 4.0 + 2);
    for (int k = 0; k < 64'000; ++k)
      s.q.push_back(static_cast<int32_t>(std::clamp(normal(random), -3.2, 3.2) * sigma));
    const std::vector<std::string> bodies = CoderOf(s).Encode(s.q, {}, s.tokens);
    for (uint32_t level = 0; level <= 2; ++level) {
      const double want = CrossEntropy(s, 2, level, UniversalPlaneTables().distance[2 - level]) / 8;
      const double got = static_cast<double>(bodies[level].size());
      EXPECT_LE(got, want * 1.01 + 32) << "row " << row << " level " << level;
      EXPECT_GE(got, want > 1000 ? want * 0.99 : 0) << "row " << row << " level " << level;
    }
  }
}

TEST(PlaneCoder, ATiltSavesWhereSignsAreOfOneKind) {
  Sample s = MakeSample(256, 20, true, 2, 256, 3);
  std::ranges::fill(s.layout.rows, int16_t{12});
  std::ranges::fill(s.energies, kPlaneEnergies / 2);
  for (int32_t& value : s.q) value = std::abs(value) % 12;
  const auto bytes = [&](int8_t tilt) {
    s.layout.tilts.assign(20, tilt);
    size_t sum = 0;
    for (const std::string& body : CoderOf(s).Encode(s.q, s.energies, s.tokens)) sum += body.size();
    return sum;
  };
  EXPECT_LT(bytes(12) + 256, bytes(0));
  EXPECT_GT(bytes(-12), bytes(0) + 256);
  s.layout.tilts.assign(20, 0);
  const std::vector<std::string> even = CoderOf(s).Encode(s.q, s.energies, s.tokens);
  s.layout.tilts.clear();
  EXPECT_EQ(CoderOf(s).Encode(s.q, s.energies, s.tokens), even) << "no tilt is a tilt of 0";
}

TEST(PlaneCoder, NothingToSayCostsOnlyTheLengths) {
  const Sample s{.layout = {.rows = std::vector<int16_t>(500, 0), .levels = 3},
                 .tokens = 40,
                 .q = std::vector<int32_t>(500 * 48)};
  for (const std::string& body : CoderOf(s).Encode(s.q, {}, s.tokens)) EXPECT_EQ(body.size(), 5u);
}

TEST(PlaneTables, FitReproducesTheUniversalTables) {
  std::mt19937 random(9);
  std::normal_distribution<double> normal;
  std::vector<float> unit;
  for (int k = 0; k < 400'000; ++k) {
    const double sigma = std::exp(.3 * normal(random) - .09);
    unit.push_back(static_cast<float>(sigma * normal(random)));
  }
  const std::array<uint64_t, kPlaneEnergies> energies{};
  const PlaneTables fitted = FitPlaneTables(unit, energies);
  ASSERT_TRUE(Validate(fitted).ok()) << Validate(fitted);
  for (int d = 0; d < kPlaneDistances; ++d) {
    const LevelTables& got = fitted.distance[d];
    const LevelTables& want = UniversalPlaneTables().distance[d];
    for (int row = 8; row < kPlaneRows; ++row) {
      SCOPED_TRACE(testing::Message() << "distance " << d << " row " << row);
      for (int k = 0; k < kPlaneSymbols; ++k) EXPECT_NEAR(got.base[row][k], want.base[row][k], 60);
      EXPECT_NEAR(got.zero[row][0], want.zero[row][0], 100);
      EXPECT_NEAR(got.centre[row][1], want.centre[row][1], 8);
    }
    for (int context = 0; context < kPlaneContexts; ++context)
      EXPECT_NEAR(got.zero[20][context], want.zero[20][context], 150) << d << " " << context;
  }
}

TEST(PlaneTables, FitOfOddSamplesIsStillATable) {
  const std::array<uint64_t, kPlaneEnergies> energies{1, 1u << 30};
  for (const std::vector<float>& unit :
       {std::vector<float>{}, std::vector<float>(1000, 0.f), std::vector<float>(1000, 3.7f),
        std::vector<float>{1e30f, -1e30f, 0}}) {
    const PlaneTables tables = FitPlaneTables(unit, energies);
    EXPECT_TRUE(Validate(tables).ok()) << Validate(tables);
  }
}

TEST(PlaneTables, ParsesWhatItSerializedAndRefusesTheRest) {
  const std::string bytes = SerializePlaneTables(UniversalPlaneTables());
  ASSERT_EQ(bytes.size(), kPlaneTablesBytes);
  const auto parsed = ParsePlaneTables(AsBytes(bytes));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, UniversalPlaneTables());
  EXPECT_EQ(ParsePlaneTables(AsBytes(bytes).first(100)).status().code(),
            absl::StatusCode::kDataLoss);
  std::string bad = bytes;
  bad[0] ^= 1;
  EXPECT_EQ(ParsePlaneTables(AsBytes(bad)).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace kvstow
