#include "kernels/entropy/plane_coder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/digest.h"
#include "kernels/entropy/plane_tables.h"
#include "kernels/entropy/rans.h"

namespace kvstow {
namespace {

// Coefficients [tokens, width] with spreads from a hundredth of the base step to 300 times it.
struct Sample {
  PlaneLayout layout;
  uint32_t tokens;
  std::vector<int32_t> q;  // at level `finest`
  std::vector<uint8_t> energies;
};

Sample MakeSample(uint32_t tokens, uint32_t width, uint32_t blocks, uint32_t finest,
                  uint32_t tokens_per_stream, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Sample s{.tokens = tokens};
  s.layout.levels = finest + 1;
  s.layout.tokens_per_stream = tokens_per_stream;
  for (uint32_t i = 0; i < width; ++i)
    s.layout.rows.push_back(static_cast<int16_t>(random() % 60 - 10));
  for (uint32_t b = 1; b <= blocks; ++b) s.layout.block_ends.push_back(width * b / blocks);
  for (uint32_t t = 0; t < tokens; ++t) {
    for (uint32_t b = 0; b < blocks; ++b)
      s.energies.push_back(static_cast<uint8_t>(random() % kPlaneEnergies));
    uint32_t b = 0;
    for (uint32_t i = 0; i < width; ++i) {
      while (blocks > 0 && i >= s.layout.block_ends[b]) ++b;
      const int shift = blocks == 0 ? 0 : 2 * (s.energies[t * blocks + b] - 8);
      const double sigma = std::exp2((s.layout.rows[i] + shift - kPlaneUnitRow) / 4.0 + finest);
      s.q.push_back(static_cast<int32_t>(
          std::clamp(normal(random) * sigma, -kPlaneMaxMagnitude + 1.0, kPlaneMaxMagnitude - 1.0)));
    }
  }
  return s;
}

int32_t AtLevel(int32_t q, uint32_t finest, uint32_t level) {
  const int32_t magnitude = std::abs(q) >> (finest - level);
  return q < 0 ? -magnitude : magnitude;
}

class PlaneCoderTest : public testing::TestWithParam<uint32_t> {};

TEST_P(PlaneCoderTest, EveryLevelIsTheLeadingBitsOfTheFinest) {
  const uint32_t finest = 3;
  for (const uint32_t blocks : {0u, 1u, 3u}) {
    const Sample s = MakeSample(37, 53, blocks, finest, GetParam(), 7 + blocks);
    const PlaneCoder coder(s.layout, UniversalPlaneTables());
    std::vector<int32_t> got(s.q.size());
    std::vector<uint8_t> energies(s.energies.size());
    for (uint32_t level = 0; level <= finest; ++level) {
      const std::string body = coder.EncodeLevel(s.q, s.energies, level);
      ASSERT_TRUE(
          coder.DecodeLevel(AsBytes(body), level, s.tokens, {0, s.tokens}, got, energies).ok());
      for (size_t k = 0; k < got.size(); ++k)
        ASSERT_EQ(got[k], AtLevel(s.q[k], finest, level)) << "level " << level << " value " << k;
      EXPECT_EQ(energies, s.energies);
    }
  }
}

TEST_P(PlaneCoderTest, TokenRangesDecodeAlone) {
  const uint32_t each = GetParam();
  const Sample s = MakeSample(41, 20, 2, 1, each, 11);
  const PlaneCoder coder(s.layout, UniversalPlaneTables());
  const std::string bodies[] = {coder.EncodeLevel(s.q, s.energies, 0),
                                coder.EncodeLevel(s.q, s.energies, 1)};
  for (uint32_t first = 0; first < s.tokens; first += 5) {
    const TokenRange range = WholeStreams({first, 3}, s.tokens, each);
    ASSERT_LE(range.first, first);
    ASSERT_GE(range.first + range.count, std::min(first + 3, s.tokens));
    std::vector<int32_t> got(range.count * 20);
    std::vector<uint8_t> energies(range.count * 2);
    for (const uint32_t level : {0u, 1u})
      ASSERT_TRUE(
          coder.DecodeLevel(AsBytes(bodies[level]), level, s.tokens, range, got, energies).ok());
    EXPECT_TRUE(std::equal(got.begin(), got.end(), s.q.begin() + range.first * 20)) << first;
  }
}

INSTANTIATE_TEST_SUITE_P(TokensPerStream, PlaneCoderTest, testing::Values(1, 4, 64));

TEST(PlaneCoder, DamageIsDataLossOrOtherValuesAndNeverACrash) {
  const Sample s = MakeSample(24, 40, 2, 1, 4, 3);
  const PlaneCoder coder(s.layout, UniversalPlaneTables());
  std::mt19937 random(1);
  int lost = 0, tries = 0;
  for (const uint32_t level : {0u, 1u}) {
    const std::string body = coder.EncodeLevel(s.q, s.energies, level);
    const auto decode = [&](const std::string& bytes) {
      std::vector<int32_t> got(s.q.size());
      for (size_t k = 0; k < got.size(); ++k) got[k] = level == 0 ? 0 : AtLevel(s.q[k], 1, 0);
      std::vector<uint8_t> energies = s.energies;
      return coder.DecodeLevel(AsBytes(bytes), level, s.tokens, {0, s.tokens}, got, energies);
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
      EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kDataLoss) << status;
      lost += !status.ok();
    }
  }
  EXPECT_GT(lost, tries * 8 / 10);  // the digest of the segment finds the others
}

// What the tables say a level costs, in bits.
double CrossEntropy(const Sample& s, uint32_t finest, uint32_t level, const LevelTables& tables) {
  double bits = 0;
  for (size_t k = 0; k < s.q.size(); ++k) {
    const int row = std::clamp(
        s.layout.rows[k % s.layout.rows.size()] + 4 * static_cast<int>(level == 0 ? 0 : level - 1),
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
                        .tokens_per_stream = 16},
             .tokens = 64};
    const double sigma = std::exp2((row - kPlaneUnitRow) / 4.0 + 2);
    for (int k = 0; k < 64'000; ++k)
      s.q.push_back(static_cast<int32_t>(std::clamp(normal(random), -3.2, 3.2) * sigma));
    const PlaneCoder coder(s.layout, UniversalPlaneTables());
    for (uint32_t level = 0; level <= 2; ++level) {
      const double want = CrossEntropy(s, 2, level, UniversalPlaneTables().distance[2 - level]) / 8;
      const double got = static_cast<double>(coder.EncodeLevel(s.q, {}, level).size());
      EXPECT_LE(got, want * 1.01 + 4 * 4.0) << "row " << row << " level " << level;
      EXPECT_GE(got, want > 1000 ? want * 0.99 : 0) << "row " << row << " level " << level;
    }
  }
}

TEST(PlaneCoder, NothingToSayCostsOnlyTheLengths) {
  const PlaneCoder coder({.rows = std::vector<int16_t>(500, 0), .levels = 3},
                         UniversalPlaneTables());
  const std::vector<int32_t> zeros(500 * 16);
  EXPECT_EQ(coder.EncodeLevel(zeros, {}, 0).size(), 5u);
  EXPECT_EQ(coder.EncodeLevel(zeros, {}, 2).size(), 5u);
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
