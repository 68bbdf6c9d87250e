// The prediction of what a lossy page costs.
#include "kernels/methods/divergence_meter.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/bytes.h"
#include "base/digest.h"
#include "kernels/calibration/page_end.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "tests/kernels/correlated_pages.h"

namespace kvstow::testing {
namespace {

constexpr uint32_t kTokens = 128;

double After(const std::string& recipe, std::initializer_list<uint64_t> seeds) {
  const KvSpec spec = CorrelatedSpec();
  DivergenceMeter meter(spec);
  for (const uint64_t seed : seeds) {
    const auto raw = CorrelatedPage(spec, kTokens, seed);
    const PageToEncode page{.raw = raw, .tokens = kTokens};
    const auto encoded = (*MakeCodec(*ParseRecipe(recipe), spec))->Encode(page);
    std::vector<uint8_t> decoded(raw.size());
    EXPECT_TRUE(DecodePage(encoded->header, encoded->segments, decoded).ok());
    EXPECT_TRUE(meter.Add(page, decoded).ok());
  }
  return meter.Divergence();
}

TEST(DivergenceMeter, IsZeroForTheSameBytesAndGrowsWithTheError) {
  EXPECT_EQ(After("raw", {1}), 0);
  EXPECT_EQ(DivergenceMeter(CorrelatedSpec()).Divergence(), 0) << "without pages";
  double last = 0;
  for (const char* recipe : {"int8", "kvstow(step=0.2)", "kvstow", "kvstow(step=2)"}) {
    const double now = After(recipe, {1, 2});
    EXPECT_GT(now, last) << recipe;
    last = now;
  }
  EXPECT_NEAR(After("kvstow", {1, 2}), After("kvstow", {3, 4}), 0.3 * After("kvstow", {1, 2}));
}

// What errors of K and V cost by CostPrior, of the variances that the page has, times the token's
// sensitivity by its key, over the mean.
TEST(DivergenceMeter, IsTheFormulaOfItsHeader) {
  KvSpec spec = SpecOf(DType::kF32, 1, 1, 2, 2, 128);
  std::vector<float> k(2 * kTokens), v(2 * kTokens);
  Gaussian random(5);
  for (float& x : k) x = 3 + random();
  for (float& x : v) x = 7 * random();
  const auto page_of = [&] {
    std::vector<uint8_t> raw(PageBytes(spec, kTokens));
    std::memcpy(raw.data(), k.data(), 4 * k.size());
    std::memcpy(raw.data() + 4 * k.size(), v.data(), 4 * v.size());
    return raw;
  };
  const auto raw = page_of();
  const auto spread = [](const std::vector<float>& x, size_t c) {
    double sum = 0, squares = 0, n = 0;
    for (size_t i = 2 * kFirstTokens + c; i < x.size(); i += 2, ++n) {
      sum += x[i];
      squares += double{x[i]} * x[i];
    }
    return squares - sum * sum / n;
  };
  const double k0 = spread(k, 0), k1 = spread(k, 1), spread_v = spread(v, 0) + spread(v, 1);
  const double felt = [&] {  // of token 50
    double m0 = 0, m1 = 0, n = kTokens - kFirstTokens, sum = 0;
    for (size_t t = kFirstTokens; t < kTokens; ++t) m0 += k[2 * t] / n, m1 += k[2 * t + 1] / n;
    const auto sensitivity = [&](size_t t) {
      const double less = (m0 - k[2 * t]) * m0 + (m1 - k[2 * t + 1]) * m1;
      return std::exp(5.6 * less / std::sqrt((m0 * m0 + m1 * m1) * (k0 + k1) / n));
    };
    for (size_t t = kFirstTokens; t < kTokens; ++t) sum += sensitivity(t);
    return sensitivity(50) / (sum / n);
  }();
  const double weight = 2 * std::sqrt(k0) / (std::sqrt(k0) + std::sqrt(k1));
  k[100] += 0.5f;
  v[101] -= 2;
  v[3] += 1000;  // of the first tokens of a text, which are left out
  DivergenceMeter meter(spec);
  ASSERT_TRUE(meter.Add({.raw = raw, .tokens = kTokens}, page_of()).ok());
  const double end = EndWeights(kTokens)[50];
  const double cost = 0.14 * felt * end * (4 / spread_v + 0.25 * weight / (k0 + k1));
  const double expected = 0.01 * std::pow(cost / 0.01, 1.27);
  EXPECT_NEAR(meter.Divergence(), expected, 1e-5 * expected);
}

// The divergence grows with what errors cost, where keys pass a norm.
TEST(DivergenceMeter, NormedKeysHaveAPowerOfTheirOwn) {
  const KvSpec spec = SpecOf(DType::kF32, 1, 1, 2, 2, 128);
  std::vector<float> values(4 * kTokens);
  Gaussian random(5);
  for (float& x : values) x = random();
  std::vector<uint8_t> raw(PageBytes(spec, kTokens)), decoded(raw.size());
  std::memcpy(raw.data(), values.data(), raw.size());
  const float came = values[2 * kTokens + 101];  // V of token 50
  const auto with_error = [&](float error, const ModelStats& stats) {
    values[2 * kTokens + 101] = came + error;
    std::memcpy(decoded.data(), values.data(), raw.size());
    DivergenceMeter meter(spec, stats);
    EXPECT_TRUE(meter.Add({.raw = raw, .tokens = kTokens}, decoded).ok());
    return meter.Divergence();
  };
  const ModelStats usual, normed{.normed_keys = true};
  EXPECT_NEAR(with_error(2, normed) / with_error(1, normed), std::pow(4, 1.1), 0.01);
  EXPECT_NEAR(with_error(2, usual) / with_error(1, usual), std::pow(4, 1.27), 0.01);
}

// The mean over tokens of gain^2 e' metric e / d, where the model's statistics are known.
TEST(DivergenceMeter, GoesByTheStatisticsOfTheModel) {
  KvSpec spec = SpecOf(DType::kF32, 1, 1, 2, 2, 128);
  const ModelStats stats{.metric_k = {1.5, 0.5, 0.5, 0.5},
                         .metric_v = {1, 0, 0, 1},
                         .gain_k = {0.2f},
                         .gain_v = {3},
                         .slope_k = {},
                         .slope_v = {},
                         .sensitivity = {}};
  std::vector<float> values(4 * kTokens);
  Gaussian random(5);
  for (float& x : values) x = random();
  std::vector<uint8_t> raw(PageBytes(spec, kTokens)), decoded;
  std::memcpy(raw.data(), values.data(), raw.size());
  values[100] += 0.5f;  // K of token 50
  values[101] += 1;
  values[2 * kTokens + 41] -= 2;    // V of token 20
  values[2 * kTokens + 3] += 1000;  // of the first tokens of a text, which are left out
  decoded.resize(raw.size());
  std::memcpy(decoded.data(), values.data(), raw.size());
  DivergenceMeter meter(spec, stats);
  ASSERT_TRUE(meter.Add({.raw = raw, .tokens = kTokens}, decoded).ok());
  const double k = 0.04 * (1.5 * 0.25 + 2 * 0.5 * 0.5 * 1 + 0.5) / 2, v = 9 * 4 / 2.0;
  const std::vector<double> end = EndWeights(kTokens);
  EXPECT_NEAR(meter.Divergence(), (end[50] * k + end[20] * v) / (kTokens - kFirstTokens), 1e-6);
}

// Each token's cost counts by its sensitivity s, over the mean of s^0.6, where slopes are known.
TEST(DivergenceMeter, WeighsTokensByTheirSensitivity) {
  KvSpec spec = SpecOf(DType::kF32, 1, 1, 2, 2, 128);
  const ModelStats stats{.metric_k = {1, 0, 0, 1},
                         .metric_v = {1, 0, 0, 1},
                         .gain_k = {1},
                         .gain_v = {1},
                         .slope_k = {0, 0},
                         .slope_v = {0.5, 0},
                         .sensitivity = {}};
  std::vector<float> values(4 * kTokens);
  const size_t v = 2 * kTokens;
  for (size_t t = kTokens / 2; t < kTokens; ++t) values[v + 2 * t] = 4;  // felt e^2 times as much
  std::vector<uint8_t> raw(PageBytes(spec, kTokens)), decoded(raw.size());
  std::memcpy(raw.data(), values.data(), raw.size());
  const auto cost_of = [&](size_t token) {
    std::vector<float> wrong = values;
    wrong[v + 2 * token + 1] += 1;
    std::memcpy(decoded.data(), wrong.data(), raw.size());
    DivergenceMeter meter(spec, stats);
    EXPECT_TRUE(meter.Add({.raw = raw, .tokens = kTokens}, decoded).ok());
    return meter.Divergence();
  };
  const double few = kTokens / 2.0 - kFirstTokens, many = kTokens / 2.0, all = few + many;
  const double less = std::exp(-2 * many / all), more = std::exp(2 * few / all);
  // gain^2 e' metric e / d is 0.5.
  const double unit = 0.5 / (few * std::pow(less, 0.6) + many * std::pow(more, 0.6));
  const std::vector<double> end = EndWeights(kTokens);
  EXPECT_NEAR(cost_of(20), end[20] * unit * less, 1e-6);
  EXPECT_NEAR(cost_of(100), end[100] * unit * more, 1e-6);
}

// Errors of a text cost as the square root of the entropy that its last layer foretells.
TEST(DivergenceMeter, GoesWithTheEntropyOfThePage) {
  KvSpec spec = SpecOf(DType::kF32, 2, 1, 2, 2, 128);
  ModelStats stats{.metric_k = {1, 0, 0, 1, 1, 0, 0, 1},
                   .metric_v = {1, 0, 0, 1, 1, 0, 0, 1},
                   .gain_k = {1, 1},
                   .gain_v = {1, 1},
                   .slope_k = {0, 0, 0, 0},
                   .slope_v = {0, 0, 0, 0},
                   .entropy = {},
                   .sensitivity = {}};
  const size_t last = 4 * kTokens;  // K of the last layer, and behind it V
  const auto page_of = [&](float first_of_v) {
    std::vector<float> values(8 * kTokens);
    for (size_t t = 0; t < kTokens; ++t) values[last + 2 * kTokens + 2 * t] = first_of_v;
    return values;
  };
  const auto cost_of = [&](const std::vector<float>& values) {
    std::vector<float> wrong = values;
    wrong[2 * 50 + 1] += 1;  // K of layer 0
    std::vector<uint8_t> raw(PageBytes(spec, kTokens)), decoded(raw.size());
    std::memcpy(raw.data(), values.data(), raw.size());
    std::memcpy(decoded.data(), wrong.data(), raw.size());
    DivergenceMeter meter(spec, stats);
    EXPECT_TRUE(meter.Add({.raw = raw, .tokens = kTokens}, decoded).ok());
    return meter.Divergence();
  };
  const double plain = cost_of(page_of(3));
  EXPECT_GT(plain, 0);
  stats.entropy = {0, 0, 0.5, 0, 0.25};
  EXPECT_NEAR(cost_of(page_of(3)) / plain, std::sqrt(1.75), 1e-6);
  EXPECT_NEAR(cost_of(page_of(0)) / plain, 0.5, 1e-6);
  EXPECT_NEAR(cost_of(page_of(-9)) / plain, std::sqrt(0.1), 1e-6) << "never below nothing";
  EXPECT_NEAR(cost_of(page_of(1000)) / plain, std::sqrt(8), 1e-6) << "no page is beyond all bounds";
  stats.power = 1.5;
  const double over = plain * std::sqrt(1.75) / 0.01;
  EXPECT_NEAR(cost_of(page_of(3)) / 0.01, std::pow(over, 1.5), 1e-4) << "of all costs";
}

TEST(DivergenceMeter, ChannelsThatStandStillAndBadValues) {
  KvSpec spec = CorrelatedSpec();
  std::vector<uint8_t> zeros(PageBytes(spec, kTokens));
  DivergenceMeter meter(spec);
  ASSERT_TRUE(meter.Add({.raw = zeros, .tokens = kTokens}, zeros).ok());
  EXPECT_EQ(meter.Divergence(), 0);
  std::vector<uint8_t> inf = zeros;
  inf[inf.size() - 1] = 0x7c;
  EXPECT_EQ(meter.Add({.raw = zeros, .tokens = kTokens}, inf).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(meter.Add({.raw = std::span(zeros).first(10), .tokens = kTokens}, zeros).ok());
}

}  // namespace
}  // namespace kvstow::testing
