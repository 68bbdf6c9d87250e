// Recipes that ask for a ratio, an error or a divergence, on the page of a real model.
#include "kernels/codec/rate_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "kernels/calibration/model_stats.h"
#include "kernels/codec/calibrate.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/methods/divergence_meter.h"
#include "tests/kernels/correlated_pages.h"
#include "tests/kernels/fixture.h"

namespace kvstow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A whole page, or its first layers: enough for a search, and sooner done.
class Rate : public ::testing::Test {
 protected:
  Rate() : spec_(testing::FixtureSpec()), raw_(testing::FixturePage()) {
    spec_.layers = 10;
    raw_.resize(PageBytes(spec_, testing::kFixtureTokens));
  }

  EncodedPage Encode(const std::string& recipe) {
    const auto codec = MakeCodec(ParseRecipe(recipe).value(), spec_);
    EXPECT_TRUE(codec.ok()) << codec.status();
    auto page = (*codec)->Encode({.raw = raw_, .tokens = testing::kFixtureTokens});
    EXPECT_TRUE(page.ok()) << page.status();
    return *std::move(page);
  }
  double Ratio(const EncodedPage& page) const {
    return static_cast<double>(raw_.size()) / static_cast<double>(page.StoredBytes());
  }
  // Squared error over energy, the mean of slabs.
  double Error(const EncodedPage& page) const {
    std::vector<uint8_t> back(raw_.size());
    const absl::Status status = DecodePage(page.header, page.segments, back);
    EXPECT_TRUE(status.ok()) << status;
    double sum = 0;
    const size_t slab = back.size() / (2 * spec_.layers);
    for (size_t at = 0; at < back.size(); at += slab) {
      sum += testing::RelativeError(spec_.dtype, std::span(raw_).subspan(at, slab),
                                    std::span(back).subspan(at, slab));
    }
    return sum / (2 * spec_.layers);
  }

  double Divergence(const EncodedPage& page, const ModelStats& stats = {},
                    const CalibrationStore& calibrations = NoCalibrations()) const {
    std::vector<uint8_t> back(raw_.size());
    EXPECT_TRUE(DecodePage(page.header, page.segments, back, calibrations).ok());
    DivergenceMeter meter(spec_, stats);
    EXPECT_TRUE(meter.Add({.raw = raw_, .tokens = testing::kFixtureTokens}, back).ok());
    return meter.Divergence();
  }

  KvSpec spec_;
  std::vector<uint8_t> raw_;
};

TEST_F(Rate, TheRatioAskedForIsReached) {
  for (const double ratio : {3.0, 8.0, 20.0}) {
    const EncodedPage page = Encode(absl::StrCat("kvstow(ratio=", ratio, ")"));
    EXPECT_NEAR(Ratio(page), ratio, 0.02 * ratio);
    EXPECT_LT(Error(page), 0.3);
  }
}

TEST_F(Rate, TheErrorAskedForIsReached) {
  for (const double error : {0.002, 0.02, 0.1}) {
    const EncodedPage page = Encode(absl::StrCat("kvstow(error=", error, ")"));
    EXPECT_NEAR(Error(page), error, 0.05 * error);
  }
}

TEST_F(Rate, TheDivergenceAskedForIsReached) {
  for (const double divergence : {0.002, 0.01, 0.05}) {
    const EncodedPage page = Encode(absl::StrCat("kvstow(divergence=", divergence, ")"));
    EXPECT_NEAR(Divergence(page), divergence, 0.03 * divergence);
  }
  const EncodedPage normed = Encode("kvstow(keys=2,divergence=0.05)");
  EXPECT_NEAR(Divergence(normed, {.normed_keys = true}), 0.05, 0.0015);
}

// A calibration that brings the model's statistics: they say what a page costs.
TEST_F(Rate, ADivergenceGoesByTheStatisticsOfTheModel) {
  ModelStats stats;
  for (uint32_t i = 0; i < spec_.layers * spec_.kv_heads; ++i) {
    stats.gain_k.push_back(0.02f);
    stats.gain_v.push_back(0.05f);
    for (uint32_t at = 0; at < 64 * 64; ++at) stats.metric_k.push_back(at % 65 == 0 ? 1 : 0);
  }
  stats.metric_v = stats.metric_k;
  const auto fit = StartCalibration(*ParseRecipe("kvstow-cal"), spec_, stats).value();
  for (int pass = 0; pass < fit->passes(); ++pass) {
    ASSERT_TRUE(fit->Add({.raw = raw_, .tokens = testing::kFixtureTokens}).ok());
    ASSERT_TRUE(fit->EndPass().ok());
  }
  const std::string blob = fit->Finish().value();
  CalibrationStore calibrations;
  ASSERT_TRUE(
      calibrations
          .Add(AsBytes(
              WithSection(AsBytes(blob), StatsSection(ShapeFor(spec_, 1), stats).value()).value()))
          .ok());
  for (const double divergence : {0.002, 0.01}) {
    const auto recipe = ParseRecipe(absl::StrCat("kvstow-cal(divergence=", divergence, ")"));
    const auto page = MakeCodec(*recipe, spec_, calibrations)
                          .value()
                          ->Encode({.raw = raw_, .tokens = testing::kFixtureTokens});
    ASSERT_TRUE(page.ok()) << page.status();
    EXPECT_NEAR(Divergence(*page, stats, calibrations), divergence, 0.03 * divergence);
    EXPECT_THAT(page->header.pipeline, AllOf(HasSubstr("step="), Not(HasSubstr("divergence"))));
  }
}

TEST_F(Rate, ThePageSaysTheStepAndIsWhatThatRecipeMakes) {
  const EncodedPage page = Encode("planes(ratio=6,levels=2,k=1,depth=1)");
  EXPECT_THAT(page.header.pipeline, HasSubstr("planes(step="));
  EXPECT_THAT(page.header.pipeline, Not(HasSubstr("ratio")));
  const EncodedPage same = Encode(page.header.pipeline);
  EXPECT_EQ(same.header, page.header);
}

TEST_F(Rate, ATargetOutOfReachGetsTheClosestStep) {
  EXPECT_THAT(Encode("planes(ratio=1)").header.pipeline, HasSubstr("step=0.01000"));
  EXPECT_THAT(Encode("planes(ratio=1000)").header.pipeline, HasSubstr("step=8.00000"));
  EXPECT_THAT(Encode("planes(error=0.000001)").header.pipeline, HasSubstr("step=0.01000"));
}

TEST_F(Rate, PagesThatCannotBeCodedAreKeptExactly) {
  raw_[100] = 0, raw_[101] = 0x7c;  // Inf
  const EncodedPage page = Encode("kvstow(ratio=8)");
  EXPECT_TRUE(page.header.fell_back);
  std::vector<uint8_t> back(raw_.size());
  ASSERT_TRUE(DecodePage(page.header, page.segments, back).ok());
  EXPECT_EQ(back, raw_);
}

// Pages whose cost no variance tells: all zeros, one token, and only first tokens of a text.
TEST_F(Rate, PagesThatSayLittleOfTheirCostComeBack) {
  const auto codec = MakeCodec(ParseRecipe("kvstow(divergence=0.01)").value(), spec_).value();
  const auto comes_back = [&](PageToEncode page) {
    const auto encoded = codec->Encode(page);
    ASSERT_TRUE(encoded.ok()) << encoded.status();
    EXPECT_GT(encoded->StoredBytes(), 0u);
    std::vector<uint8_t> back(page.raw.size());
    ASSERT_TRUE(DecodePage(encoded->header, encoded->segments, back).ok());
    EXPECT_LT(testing::RelativeError(spec_.dtype, page.raw, back), 0.2);
  };
  const std::vector<uint8_t> zeros(raw_.size());
  comes_back({.raw = zeros, .tokens = testing::kFixtureTokens});
  const std::vector<uint8_t> few(raw_.begin(), raw_.begin() + PageBytes(spec_, 4));
  const std::vector<uint8_t> one(few.begin(), few.begin() + PageBytes(spec_, 1));
  comes_back({.raw = one, .tokens = 1, .first_position = 1024});
  comes_back({.raw = one, .tokens = 1});
  comes_back({.raw = few, .tokens = 4});
}

TEST(RateOfCalibrated, TheRatioAskedForIsReached) {
  const KvSpec spec = testing::CorrelatedSpec();
  CalibrationStore store;
  ASSERT_TRUE(store.Add(AsBytes(testing::FitCorrelated(spec, 3).value())).ok());
  const auto raw = testing::CorrelatedPage(spec, 128, 500, 128);
  for (const double ratio : {30.0, 60.0}) {
    const auto recipe = ParseRecipe(absl::StrCat("kvstow-cal(run=3,ratio=", ratio, ")")).value();
    const auto codec = MakeCodec(recipe, spec, store);
    ASSERT_TRUE(codec.ok()) << codec.status();
    const EncodedPage page =
        (*codec)->Encode({.raw = raw, .tokens = 128, .first_position = 128}).value();
    EXPECT_NEAR(static_cast<double>(raw.size()) / static_cast<double>(page.StoredBytes()), ratio,
                0.02 * ratio);
    EXPECT_THAT(page.header.pipeline, HasSubstr("joint(run=3,step="));
    std::vector<uint8_t> back(raw.size());
    EXPECT_TRUE(DecodePage(page.header, page.segments, back, store).ok());
  }
}

// A prediction that is no number, or too large for one, asks for finer steps. The page comes back
// whatever is predicted.
TEST(RateOfPredictions, OnesThatAreNoNumbersStillMakeAPage) {
  const KvSpec spec = testing::CorrelatedSpec();
  const auto raw = testing::CorrelatedPage(spec, 128, 500, 128);
  const Recipe recipe = ParseRecipe("planes(divergence=0.01)").value();
  const auto make = [&](const Recipe& stepped) { return MakeCodec(stepped, spec); };
  const auto step_of = [&](PredictDivergence predict) {
    const auto codec = MakeRateCodec(recipe, RateTargetOf(recipe).value().value(), make, predict);
    const auto page = codec.value()->Encode({.raw = raw, .tokens = 128, .first_position = 128});
    EXPECT_TRUE(page.ok()) << page.status();
    EXPECT_FALSE(page->segments.empty());
    const Recipe made = ParseRecipe(page->header.pipeline).value();
    return std::stod(made.ops().back().arguments.at(0).value);
  };
  for (const double odd :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const auto always = [=](const PageToEncode&, const EncodedPage&) { return odd; };
    EXPECT_GT(step_of(always), 0);
    const auto of_large_steps = [&](const PageToEncode&, const EncodedPage& page) {
      return page.StoredBytes() * 3 < raw.size() ? odd : 0.01;
    };
    EXPECT_LT(step_of(of_large_steps), 0.5);
  }
}

TEST(RateRecipe, ATargetTakesThePlaceOfTheStep) {
  const auto pipeline = [](absl::string_view text, absl::string_view name, double value) {
    const auto recipe = WithTarget(ParseRecipe(text).value(), name, value);
    return recipe.ok() ? recipe->pipeline() : std::string(recipe.status().message());
  };
  EXPECT_THAT(pipeline("kvstow(step=1)", "ratio", 8), HasSubstr("ratio=8.000000)"));
  EXPECT_THAT(pipeline("kvstow(step=1)", "ratio", 8), Not(HasSubstr("step")));
  EXPECT_THAT(pipeline("random|class|kvstow-cal(error=0.1)", "ratio", 30),
              AllOf(HasSubstr("class|joint("), HasSubstr("ratio=30.0"), Not(HasSubstr("error"))));
  EXPECT_THAT(pipeline("kvstow", "error", 1e-5), HasSubstr("error=0.000010)"));
  EXPECT_THAT(pipeline("int8", "ratio", 2), AllOf(HasSubstr("'int8'"), HasSubstr("no step")));
  EXPECT_THAT(pipeline("snapkv|int8", "error", 0.1), HasSubstr("no step"));
  EXPECT_THAT(pipeline("kvstow", "ratio", 2000), HasSubstr("ratio"));
}

TEST(RateRecipe, StepRatioErrorAndDivergenceExcludeEachOther) {
  for (const char* text :
       {"kvstow(step=0.5,ratio=8)", "kvstow(ratio=8,step=0.5)", "kvstow(ratio=8,error=0.1)",
        "kvstow-cal(step=2,error=0.1)", "planes(step=0.5,ratio=8)", "planes(0.5,ratio=8)",
        "joint(run=1,step=2,error=0.1)", "kvstow(ratio=8,divergence=0.1)",
        "kvstow-cal(divergence=0.1,step=2)"}) {
    const auto recipe = ParseRecipe(text);
    ASSERT_TRUE(absl::IsInvalidArgument(recipe.status())) << text;
    EXPECT_THAT(std::string(recipe.status().message()), HasSubstr("only one of")) << text;
  }
}

TEST(RateRecipe, ValuesOutOfRangeAndOpsWithoutAStepAreRefused) {
  for (const char* text :
       {"kvstow(ratio=0.5)", "kvstow(ratio=2000)", "kvstow(error=2)", "kvstow(ratio=x)",
        "kvstow(divergence=2)", "kvstow(divergence=0.00001)", "int8|planes(divergence=1.5)",
        "affine(bits=4,ratio=8)", "hadamard|levels(2,ratio=8)", "lossless(ratio=2)"}) {
    const auto recipe = ParseRecipe(text);
    const absl::Status status =
        recipe.ok() ? MakeCodec(*recipe, testing::FixtureSpec()).status() : recipe.status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text << ": " << status;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(ParseRecipe("int8(ratio=8)").status()));
}

}  // namespace
}  // namespace kvstow
