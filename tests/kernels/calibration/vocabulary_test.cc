// The tokens of a vocabulary: found in pages, kept in a section of a calibration blob.
#include "kernels/calibration/vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/bytes.h"
#include "base/digest.h"
#include "kernels/codec/calibrate.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "tests/kernels/vocabulary_pages.h"

namespace kvstow::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

class VocabularyTest : public ::testing::Test {
 protected:
  static inline const KvSpec spec_ = CorrelatedSpec(2, 4, 4);
  const std::shared_ptr<const Vocabulary> vocabulary_ =
      Vocabulary::Make(ShapeFor(spec_, 1), VocabularyParts(spec_)).value();
};

TEST_F(VocabularyTest, FindsTheTokensOfAPage) {
  for (const uint32_t tokens : {1u, 7u, 128u}) {
    const auto raw = VocabularyPage(spec_, tokens, 11);
    EXPECT_EQ(vocabulary_->Find(spec_, raw, tokens), VocabularyText(tokens, 11));
  }
}

TEST_F(VocabularyTest, FindsThemInALossyPage) {
  const auto raw = VocabularyPage(spec_, 128, 12);
  for (const auto& [recipe, least] : {std::pair{"int8", 126}, {"turboquant4", 100}}) {
    const auto codec = MakeCodec(ParseRecipe(recipe).value(), spec_).value();
    const auto page = codec->Encode({.raw = raw, .tokens = 128, .first_position = 4}).value();
    std::vector<uint8_t> back(raw.size());
    ASSERT_TRUE(DecodePage(page.header, page.segments, back).ok());
    const auto found = vocabulary_->Find(spec_, back, 128), text = VocabularyText(128, 12);
    int same = 0;
    for (size_t t = 0; t < text.size(); ++t) same += found[t] == text[t] ? 1 : 0;
    EXPECT_GE(same, least) << recipe;
  }
}

TEST_F(VocabularyTest, WhatIsNearNoTokenIsNotKnown) {
  std::vector<float> x = VocabularyVectors(spec_, VocabularyText(3, 13), 13);
  for (float& value : x) value += 40;
  std::vector<uint8_t> raw(PageBytes(spec_, 3));
  JointVectors(spec_, {{0, spec_.layers}, 3, 4}).Scatter(x.data(), {0, 3}, raw);
  EXPECT_THAT(vocabulary_->Find(spec_, raw, 3), Each(kUnknownToken));
}

TEST_F(VocabularyTest, AValueThatIsNoNumberMakesAllTokensUnknown) {
  auto raw = VocabularyPage(spec_, 3, 13);
  std::fill(raw.begin(), raw.end(), 0xff);
  EXPECT_THAT(vocabulary_->Find(spec_, raw, 3), Each(kUnknownToken));
}

TEST_F(VocabularyTest, FeaturesAreInProportionAndUnknownTokensHaveNone) {
  const std::vector<TokenId> ids = {5, kUnknownToken, kVocabularyTokens, 6};
  std::vector<float> out(ids.size() * vocabulary_->width());
  vocabulary_->Features(ids, out.data());
  const std::vector<float> given = VocabularyFeatures();
  float largest = 0;
  for (uint32_t t = 0; t < kVocabularyTokens; ++t) {
    largest = std::max(largest, std::abs(given[t * kVocabularyFeatures]));
  }
  EXPECT_NEAR(out[0], given[5 * kVocabularyFeatures] / largest * 127, 0.51);
  const size_t width = vocabulary_->width();
  EXPECT_EQ(out[width - 1], 1);
  EXPECT_THAT(std::vector<float>(out.begin() + width, out.begin() + 3 * width), Each(0));
  EXPECT_EQ(out[4 * width - 1], 1);
}

TEST_F(VocabularyTest, RefusesPartsThatDoNotFit) {
  const auto refused = [](const auto& change) {
    Vocabulary::Parts parts = VocabularyParts(spec_);
    change(parts);
    return absl::IsInvalidArgument(Vocabulary::Make(ShapeFor(spec_, 1), parts).status());
  };
  EXPECT_FALSE(refused([](auto&) {}));
  EXPECT_TRUE(refused([](auto& p) { p.tokens = 0; }));
  EXPECT_TRUE(refused([](auto& p) { p.tokens = kVocabularyTokens + 1; }));
  EXPECT_TRUE(refused([](auto& p) { p.projection.pop_back(); }));
  EXPECT_TRUE(refused([](auto& p) { p.projection.clear(), p.signatures.clear(); }));
  EXPECT_TRUE(refused([](auto& p) { p.signatures[3] = std::nanf(""); }));
  EXPECT_TRUE(refused([](auto& p) { p.signatures[3] = 1e6; }));
  EXPECT_TRUE(refused([](auto& p) { p.features.clear(); }));
  EXPECT_TRUE(refused([](auto& p) { p.features[0] = INFINITY; }));
  EXPECT_TRUE(refused([](auto& p) { p.features.resize(p.tokens * (kMaxTokenFeatures + 1)); }));
}

TEST_F(VocabularyTest, ASectionHasWhatWasPutIntoIt) {
  for (const bool with_sensitivity : {false, true}) {
    const std::string blob = FitVocabulary(spec_, 1, true, with_sensitivity).value();
    const auto read = ParseCalibration(AsBytes(blob)).value();
    const VocabularyTables* const tables = VocabularyOf(*read);
    ASSERT_NE(tables, nullptr);
    EXPECT_EQ(tables->runs.size(), 2u);
    EXPECT_EQ(tables->runs[1].importance.size(), kVocabularyFeatures);
    ByteWriter before, after;
    vocabulary_->Put(before);
    tables->vocabulary->Put(after);
    EXPECT_EQ(before.bytes(), after.bytes());
  }
}

TEST_F(VocabularyTest, StatisticsOutOfACalibrationHaveItsVocabulary) {
  const std::string blob = FitVocabulary(spec_, 1, true).value();
  ModelStats stats;
  const auto section = [&] {
    stats.metric_k.assign(4 * 16, 1);
    stats.metric_v = stats.metric_k;
    stats.gain_k = stats.gain_v = {1, 1, 1, 1};
    return StatsSection(ShapeFor(spec_, 1), stats).value();
  }();
  const std::string both = WithSection(AsBytes(blob), section).value();
  EXPECT_NE(ParseModelStats(AsBytes(both), spec_).value().vocabulary, nullptr);
}

TEST_F(VocabularyTest, DamagedSectionsAreRefused) {
  const auto body = [&] {
    std::vector<VocabularyRunData> runs(2);
    for (VocabularyRunData& run : runs) {
      run.scales.assign(vocabulary_->width(), 1);
      run.halves.assign(vocabulary_->width() * 16, 0);
    }
    return VocabularySection(*vocabulary_, runs).body;
  }();
  const auto status = [](std::string bytes) {
    return ParseVocabularyTables(ShapeFor(spec_, 1), AsBytes(bytes)).status();
  };
  EXPECT_TRUE(status(body).ok()) << status(body);
  for (size_t size = 0; size < body.size(); ++size) {
    EXPECT_TRUE(absl::IsDataLoss(status(body.substr(0, size)))) << size;
  }
  EXPECT_THAT(std::string(status(body + "x").message()), HasSubstr("importance"));
  for (const size_t at : {0, 4, 8}) {  // sizes beyond what there is
    std::string large = body;
    large[at + 3] = 0x7f;
    EXPECT_TRUE(absl::IsDataLoss(status(large))) << at;
  }
}

}  // namespace
}  // namespace kvstow::testing
