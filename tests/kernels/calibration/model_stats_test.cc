// Statistics of a model as a section of a calibration blob.
#include "kernels/calibration/model_stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/bytes.h"
#include "base/status_macros.h"
#include "kernels/codec/calibrate.h"
#include "kernels/codec/calibration_store.h"
#include "kernels/methods/divergence_meter.h"
#include "tests/kernels/correlated_pages.h"
#include "tests/paths.h"

namespace kvstow::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// One layer, two KV heads; K of 2 channels and V of 1.
KvSpec Spec() {
  KvSpec spec = SpecOf(DType::kF16, 1, 2, 2, 1, 64);
  spec.rope = {.layout = RopeSpec::Layout::kHalf, .theta = 10000};
  return spec;
}
ModelStats Stats() {
  return {.metric_k = {1, 0.25, 0.25, 1, 1.5, -0.5, -0.5, 0.5},
          .metric_v = {1, 1},
          .gain_k = {0.125, 2},
          .gain_v = {0.5, 3},
          .slope_k = {},
          .slope_v = {},
          .sensitivity = {}};
}

ModelStats WithSlopes() {
  ModelStats stats = Stats();
  stats.slope_k = {0.5, -0.25, 8, 0};
  stats.slope_v = {-1, 2};
  return stats;
}

ModelStats WithEntropy() {
  ModelStats stats = WithSlopes();
  stats.entropy = {0.25, 0, -0.5, 1, 2, -1, 1.5};
  return stats;
}

ModelStats WithPower() {
  ModelStats stats = WithEntropy();
  stats.power = 1.25;
  return stats;
}

TEST(ModelStatsTest, ABlobHasWhatWasPutIntoIt) {
  const auto blob = StatsCalibration(Spec(), Stats());
  ASSERT_TRUE(blob.ok()) << blob.status();
  const auto read = ParseCalibration(AsBytes(*blob));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE((*read)->Has(kStatsSection));
  EXPECT_FALSE((*read)->Has(kJointSection));
  EXPECT_EQ((*read)->shape(), ShapeFor(Spec(), 1));
  ASSERT_NE(StatsOf(**read), nullptr);
  const ModelStats& stats = *StatsOf(**read);
  EXPECT_EQ(stats.metric_k, Stats().metric_k);
  EXPECT_EQ(stats.metric_v, Stats().metric_v);
  EXPECT_EQ(stats.gain_k, Stats().gain_k);
  EXPECT_EQ(stats.gain_v, Stats().gain_v);
  EXPECT_TRUE(stats.slope_k.empty() && stats.slope_v.empty() && stats.sensitivity.empty());
}

TEST(ModelStatsTest, SlopesStandBehindTheOthers) {
  const auto blob = StatsCalibration(Spec(), WithSlopes());
  ASSERT_TRUE(blob.ok()) << blob.status();
  const auto stats = ParseModelStats(AsBytes(*blob), Spec());
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->metric_k, Stats().metric_k);
  EXPECT_EQ(stats->gain_v, Stats().gain_v);
  EXPECT_EQ(stats->slope_k, WithSlopes().slope_k);
  EXPECT_EQ(stats->slope_v, WithSlopes().slope_v);
}

TEST(ModelStatsTest, AModelWithoutVHasNone) {
  KvSpec spec = Spec();
  spec.head_dim_v = 0;
  ModelStats stats = Stats();
  EXPECT_FALSE(StatsCalibration(spec, stats).ok()) << "statistics of V, and no V";
  stats.metric_v.clear();
  stats.gain_v.clear();
  const auto blob = StatsCalibration(spec, stats);
  ASSERT_TRUE(blob.ok()) << blob.status();
  EXPECT_TRUE(ParseCalibration(AsBytes(*blob)).ok());
}

TEST(ModelStatsTest, WrongStatisticsAreRefused) {
  const auto refused = [](const auto& change) {
    ModelStats stats = Stats();
    change(stats);
    return absl::IsInvalidArgument(StatsCalibration(Spec(), stats).status());
  };
  EXPECT_TRUE(refused([](ModelStats& s) { s.metric_k.pop_back(); }));
  EXPECT_TRUE(refused([](ModelStats& s) { s.gain_v.push_back(1); }));
  EXPECT_TRUE(refused([](ModelStats& s) { s.gain_k[1] = 0; }));
  EXPECT_TRUE(refused([](ModelStats& s) { s.gain_k[0] = -1; }));
  EXPECT_TRUE(refused([](ModelStats& s) { s.gain_k[0] = 1e11f; })) << "costs would overflow";
  EXPECT_TRUE(refused([](ModelStats& s) { s.gain_v[1] = 1e5f, s.metric_v[1] = 1e11f; }));
  EXPECT_FALSE(refused([](ModelStats& s) { s.gain_v[1] = 1e5f, s.metric_v[1] = 1e9f; }));
  EXPECT_TRUE(refused([](ModelStats& s) { s.metric_v[0] = NAN; }));
  EXPECT_TRUE(refused([](ModelStats& s) { s = {}; })) << "there are none";
  EXPECT_TRUE(refused([](ModelStats& s) { s.slope_k = {1, 2, 3, 4}; })) << "no slopes of V";
  EXPECT_TRUE(refused([](ModelStats& s) {
    s = WithSlopes();
    s.slope_v[1] = INFINITY;
  }));
  EXPECT_TRUE(refused([](ModelStats& s) { s.entropy = WithEntropy().entropy; })) << "no slopes";
  EXPECT_TRUE(refused([](ModelStats& s) {
    s = WithEntropy();
    s.entropy.pop_back();
  }));
  EXPECT_TRUE(refused([](ModelStats& s) {
    s = WithEntropy();
    s.entropy[6] = NAN;
  }));
}

TEST(ModelStatsTest, WhatForetellsTheEntropyComesBack) {
  const std::string blob = StatsCalibration(Spec(), WithEntropy()).value();
  const auto read = ParseModelStats(AsBytes(blob), Spec());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->entropy, WithEntropy().entropy);
  EXPECT_EQ(read->slope_v, WithEntropy().slope_v);
}

// Their codes stay the same: only the gains change.
TEST(ModelStatsTest, ScaledCostsHaveOtherGainsAlone) {
  const std::string blob = StatsCalibration(Spec(), WithEntropy()).value();
  const auto scaled = WithScaledCosts(AsBytes(blob), 4, 1);
  ASSERT_TRUE(scaled.ok()) << scaled.status();
  ModelStats twice = WithEntropy();
  twice.gain_k = {0.25, 4};
  twice.gain_v = {1, 6};
  EXPECT_EQ(*scaled, StatsCalibration(Spec(), twice).value());
  for (const double wrong : {0.0, -1.0, double{INFINITY}, double{NAN}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(WithScaledCosts(AsBytes(blob), wrong, 1).status()))
        << wrong;
  }
  EXPECT_TRUE(absl::IsDataLoss(WithScaledCosts(AsBytes(blob).first(20), 4, 1).status()));
}

TEST(ModelStatsTest, ScaledCostsMayGetAPower) {
  const std::string blob = StatsCalibration(Spec(), WithEntropy()).value();
  const auto scaled = WithScaledCosts(AsBytes(blob), 1, 1.25);
  ASSERT_TRUE(scaled.ok()) << scaled.status();
  EXPECT_EQ(*scaled, StatsCalibration(Spec(), WithPower()).value());
  EXPECT_EQ(ParseModelStats(AsBytes(*scaled), Spec())->power, 1.25f);
  for (const double wrong : {0.25, 2.5, -1.0, double{NAN}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(WithScaledCosts(AsBytes(blob), 1, wrong).status()))
        << wrong;
  }
  const std::string without = StatsCalibration(Spec(), WithSlopes()).value();
  EXPECT_THAT(std::string(WithScaledCosts(AsBytes(without), 1, 1.25).status().message()),
              HasSubstr("nothing beside it that foretells the entropy"));
}

// Two layers of four KV heads, each with numbers of its own.
KvSpec ModelSpec() {
  KvSpec spec = Spec();
  spec.layers = 2;
  spec.kv_heads = 4;
  return spec;
}
ModelStats OfModel() {
  ModelStats stats;
  for (int i = 0; i < 8; ++i) {
    const float x = 0.0625f * static_cast<float>(i);
    stats.metric_k.insert(stats.metric_k.end(), {1 + x, x, x, 1 - x});
    stats.metric_v.push_back(1);
    stats.gain_k.push_back(1 + x);
    stats.gain_v.push_back(3 - x);
    stats.slope_k.insert(stats.slope_k.end(), {x, -x});
    stats.slope_v.push_back(2 * x);
  }
  for (int i = 0; i < 13; ++i) stats.entropy.push_back(0.5f * static_cast<float>(i));
  return stats;
}
absl::StatusOr<ModelStats> OfRank(const KvSpec& spec, const RankOfModel& rank, float power = 1) {
  ModelStats whole = OfModel();
  whole.power = power;
  KVSTOW_ASSIGN_OR_RETURN(const std::string blob,
                          StatsOfRank(ShapeFor(ModelSpec(), 1), whole, spec, rank));
  return ParseModelStats(AsBytes(blob), spec);
}

TEST(ModelStatsTest, ARankHasItsLayersAndHeadsAlone) {
  KvSpec spec = ModelSpec();
  spec.layers = 1;
  spec.kv_heads = 2;
  const auto part = OfRank(spec, {.first_layer = 1, .tensor_rank = 1, .tensor_size = 2});
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_THAT(part->gain_k, ElementsAre(2 * 1.375f, 2 * 1.4375f)) << "heads 2 and 3 of layer 1";
  EXPECT_THAT(part->gain_v, ElementsAre(2 * 2.625f, 2 * 2.5625f));
  EXPECT_THAT(part->metric_k,
              ElementsAre(1.375f, .375f, .375f, .625f, 1.4375f, .4375f, .4375f, .5625f));
  EXPECT_THAT(part->slope_k, ElementsAre(.375f, -.375f, .4375f, -.4375f));
  EXPECT_THAT(part->slope_v, ElementsAre(.75f, .875f));
  EXPECT_TRUE(part->entropy.empty()) << "a part of the heads does not foretell it";
}

TEST(ModelStatsTest, TheRankOfTheLastLayerForetellsTheEntropy) {
  KvSpec spec = ModelSpec();
  spec.layers = 1;
  EXPECT_TRUE(OfRank(spec, {.first_layer = 0})->entropy.empty());
  EXPECT_EQ(OfRank(spec, {.first_layer = 1})->entropy, OfModel().entropy);
}

TEST(ModelStatsTest, RanksThatAreMoreThanHeadsShareThem) {
  KvSpec spec = ModelSpec();
  spec.kv_heads = 1;
  for (uint32_t rank = 0; rank < 8; ++rank) {
    const auto part = OfRank(spec, {.tensor_rank = rank, .tensor_size = 8});
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_EQ(part->gain_k[0], 2 * OfModel().gain_k[rank / 2]);
  }
}

// The bytes of a rank's part of a page of F32 of the model.
std::vector<uint8_t> PageOfRank(std::span<const uint8_t> page, const KvSpec& model,
                                const KvSpec& spec, size_t first_layer, size_t first_head) {
  const size_t tokens = page.size() / PageBytes(model, 1);
  std::vector<uint8_t> out;
  for (size_t layer = 0, at = 0; layer < model.layers; ++layer) {
    for (const size_t dim : {model.head_dim_k, model.head_dim_v}) {
      const size_t head = dim * sizeof(float);
      for (size_t token = 0; token < tokens; ++token, at += model.kv_heads * head) {
        if (layer < first_layer || layer >= first_layer + spec.layers) continue;
        const auto from = page.subspan(at + first_head * head, spec.kv_heads * head);
        out.insert(out.end(), from.begin(), from.end());
      }
    }
  }
  return out;
}

std::vector<uint8_t> RandomFloats(const KvSpec& spec, uint32_t tokens, uint64_t seed) {
  Gaussian random(seed);
  std::vector<uint8_t> out(PageBytes(spec, tokens));
  for (size_t at = 0; at < out.size(); at += sizeof(float)) {
    const float x = random();
    std::memcpy(out.data() + at, &x, sizeof(x));
  }
  return out;
}

// Each rank's space may cost what the model may lose, so together they lose no more.
TEST(ModelStatsTest, WhatTheModelLosesIsTheMeanOfWhatItsRanksPredict) {
  constexpr uint32_t kTokens = 32;
  KvSpec model = ModelSpec();
  model.dtype = DType::kF32;
  const auto came = RandomFloats(model, kTokens, 1), left = RandomFloats(model, kTokens, 2);
  const auto predicted = [&](const KvSpec& spec, const ModelStats& stats, size_t first_layer,
                             size_t first_head) {
    DivergenceMeter meter(spec, stats);
    const auto raw = PageOfRank(came, model, spec, first_layer, first_head);
    const auto decoded = PageOfRank(left, model, spec, first_layer, first_head);
    EXPECT_TRUE(meter.Add({.raw = raw, .tokens = kTokens}, decoded).ok());
    return meter.Divergence();
  };
  ModelStats whole = OfModel();
  whole.slope_k = whole.slope_v = whole.entropy = {};  // a part of the heads knows less of a token
  const double lost = predicted(model, whole, 0, 0);
  EXPECT_GT(lost, 0);
  // Pipeline ranks of a layer each, and so many tensor ranks. 8 are more than heads.
  for (const uint32_t size : {1, 2, 4, 8}) {
    KvSpec spec = model;
    spec.layers = 1;
    spec.kv_heads = std::max(1u, model.kv_heads / size);
    double sum = 0;
    for (const uint32_t layer : {0, 1}) {
      for (uint32_t rank = 0; rank < size; ++rank) {
        const auto blob =
            StatsOfRank(ShapeFor(model, 1), whole, spec,
                        {.first_layer = layer, .tensor_rank = rank, .tensor_size = size});
        ASSERT_TRUE(blob.ok()) << blob.status();
        const size_t first_head = size_t{rank} * model.kv_heads / size;
        sum += predicted(spec, *ParseModelStats(AsBytes(*blob), spec), layer, first_head);
      }
    }
    EXPECT_NEAR(sum / (2 * size), lost, 1e-4 * lost) << size;
  }
}

// A power of a part is no part of the power.
TEST(ModelStatsTest, APartHasNoPower) {
  constexpr float kPower = 1.25;
  KvSpec spec = ModelSpec();
  const auto whole = OfRank(spec, {}, kPower);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->power, kPower) << "one rank has it all";
  EXPECT_EQ(whole->gain_k, OfModel().gain_k);
  spec.layers = 1;
  const auto part = OfRank(spec, {.first_layer = 1}, kPower);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(part->power, 1);
  EXPECT_FLOAT_EQ(part->gain_k[0], std::sqrt(2.0f) * OfModel().gain_k[4]);
}

// A model may have two RoPEs, and a rank of its layers one of them.
TEST(ModelStatsTest, ARankHasTheRopesOfItsLayers) {
  KvSpec model = ModelSpec();
  model.other_rope = {.rope = {.theta = 5e5}, .layers = {1}};
  KvSpec rank = ModelSpec();
  rank.layers = 1;
  const auto of_rank = [&](uint32_t first_layer) {
    return StatsOfRank(ShapeFor(model, 1), OfModel(), rank, {.first_layer = first_layer}).status();
  };
  EXPECT_TRUE(of_rank(0).ok()) << of_rank(0);
  EXPECT_TRUE(absl::IsInvalidArgument(of_rank(1)));
  rank.rope = model.other_rope.rope;
  EXPECT_TRUE(of_rank(1).ok()) << of_rank(1);
}

TEST(ModelStatsTest, ARankOfAnotherModelIsRefused) {
  const auto refused = [](const auto& change, const RankOfModel& rank) {
    KvSpec spec = ModelSpec();
    change(spec);
    return std::string(OfRank(spec, rank).status().message());
  };
  const auto same = [](KvSpec&) {};
  EXPECT_EQ(refused(same, {}), "") << "one rank has it all";
  EXPECT_THAT(refused(same, {.first_layer = 1}), HasSubstr("of 2 layers, and the rank wants 3"));
  EXPECT_THAT(refused(same, {.tensor_size = 2}), HasSubstr("of 4 KV heads a layer"));
  EXPECT_THAT(refused(same, {.tensor_size = 3}), HasSubstr("of 4 KV heads a layer"));
  EXPECT_THAT(refused(same, {.tensor_rank = 1, .tensor_size = 1}), HasSubstr("tensor rank 1 of 1"));
  EXPECT_THAT(refused(same, {.tensor_size = 0}), HasSubstr("tensor rank 0 of 0"));
  EXPECT_THAT(refused([](KvSpec& s) { s.head_dim_k = 4; }, {}), HasSubstr("values of K a head"));
  EXPECT_THAT(refused([](KvSpec& s) { s.head_dim_v = 2; }, {}), HasSubstr("values of V a head"));
  EXPECT_THAT(refused([](KvSpec& s) { s.rope.theta = 5e5; }, {}), HasSubstr("another RoPE"));
  EXPECT_THAT(refused(
                  [](KvSpec& s) {
                    s.other_rope = {{.theta = 5e5}, {0}};
                  },
                  {}),
              HasSubstr("another RoPE"));
}

TEST(ModelStatsTest, DamagedSectionsAreRefused) {
  const CalibrationShape shape = ShapeFor(Spec(), 1);
  std::vector<float> body = {0.125, 1, 0.25, 1, 2, 1.5, -0.5, 0.5, 0.5, 1, 3, 1};
  const auto parse = [&] {
    return ParseStatsTables(
        shape, {reinterpret_cast<const uint8_t*>(body.data()), body.size() * sizeof(float)});
  };
  ASSERT_TRUE(parse().ok()) << parse().status();
  for (const float wrong : {NAN, INFINITY, 0.0f, -1.0f}) {
    body[4] = wrong;  // a gain
    EXPECT_TRUE(absl::IsDataLoss(parse().status())) << wrong;
  }
  body[4] = 2;
  body[6] = -INFINITY;  // in a metric
  EXPECT_TRUE(absl::IsDataLoss(parse().status()));
  body[6] = 0;
  body.pop_back();
  EXPECT_THAT(std::string(parse().status().message()),
              HasSubstr("44 bytes for a shape that takes 48, 72 with slopes, 100 with slopes and "
                        "entropy, or 104 with these and a power"));
  body.insert(body.end(), {1, 0.5, -0.25, 8, 0, -1, 2});  // the slopes
  ASSERT_TRUE(parse().ok()) << parse().status();
  body.back() = NAN;
  EXPECT_TRUE(absl::IsDataLoss(parse().status()));
  body.back() = 2;
  body.insert(body.end(), {0.25, 0, -0.5, 1, 2, -1, 1.5});  // the entropy
  ASSERT_TRUE(parse().ok()) << parse().status();
  body.back() = INFINITY;
  EXPECT_TRUE(absl::IsDataLoss(parse().status()));
  body.back() = 1.5;
  for (const float wrong : {0.0f, 2.5f, NAN}) {
    body.push_back(wrong);  // the power
    EXPECT_TRUE(absl::IsDataLoss(parse().status())) << wrong;
    body.pop_back();
  }
}

// A server keeps what a worker sent for one space with the space's name in it.
TEST(ModelStatsTest, ABlobTakesANote) {
  const std::string blob = StatsCalibration(Spec(), Stats()).value();
  const FitNote note{.space = {7}, .number = 3, .recipe = ""};
  const auto noted = WithFitNote(AsBytes(blob), note);
  ASSERT_TRUE(noted.ok()) << noted.status();
  const auto read = ParseCalibration(AsBytes(*noted));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ((*read)->fit_note(), note);
  EXPECT_TRUE((*read)->Has(kStatsSection));
  EXPECT_TRUE(absl::IsInvalidArgument(WithFitNote(AsBytes(*noted), note).status()));
}

void ExpectGolden(const std::string& name, const ModelStats& stats) {
  const std::filesystem::path path = TestsPath("golden/" + name);
  std::ifstream in(path, std::ios::binary);
  const std::string golden((std::istreambuf_iterator<char>(in)), {});
  const std::string made = StatsCalibration(Spec(), stats).value();
  if (golden.empty()) {
    const auto fresh = std::filesystem::temp_directory_path() / path.filename();
    std::ofstream(fresh, std::ios::binary) << made;
    FAIL() << "no golden file; a new one is " << fresh;
  }
  EXPECT_EQ(made, golden);
}

TEST(ModelStatsTest, ItsGoldenFilesAreReadForEver) {
  ExpectGolden("calibration_v2_stats.kvcal", Stats());
  ExpectGolden("calibration_v2_stats_slopes.kvcal", WithSlopes());
  ExpectGolden("calibration_v2_stats_entropy.kvcal", WithEntropy());
  ExpectGolden("calibration_v2_stats_power.kvcal", WithPower());
}

}  // namespace
}  // namespace kvstow::testing
