// Policies that end in `class`: tokens that matter more are coded finer, at the bytes of a flat
// page; without a report nothing changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/importance/policy.h"
#include "kernels/importance/token_steps.h"
#include "tests/kernels/correlated_pages.h"

namespace kvstow::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ScoreMap MapOf(std::vector<float> values) {
  ScoreMap map(1, static_cast<uint32_t>(values.size()), 1);
  map.values = std::move(values);
  return map;
}

TEST(LogStepsTest, StepsFallByThePowerOfImportanceAboutTheUsualOne) {
  const std::vector<float> steps = LogSteps(MapOf({1, 4, 16, 4}), {0, 1}, 0.5, {}, {});
  EXPECT_THAT(steps, ElementsAre(1, 0, -1, 0));
  // Scale is nothing, power 0 is flat.
  EXPECT_EQ(LogSteps(MapOf({100, 400, 1600, 400}), {0, 1}, 0.5, {}, {}), steps);
  EXPECT_THAT(LogSteps(MapOf({1, 4, 16, 4}), {0, 1}, 0, {}, {}), Each(0));
}

TEST(LogStepsTest, ScoresThatAreNoneCountAsLittle) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const auto steps = LogSteps(MapOf({1, nan, -3, 0, inf, 1}), {0, 1}, 0.5, {}, {});
  for (const size_t none : {1, 2, 3, 4}) EXPECT_EQ(steps[none], steps[1]);
  EXPECT_EQ(steps[0], steps[5]);
  // Two of six tokens have all of the importance: 3 times the mean.
  EXPECT_NEAR(steps[1] - steps[0], 0.5 * (std::log2(3) + 6), 1e-5);
  EXPECT_THAT(LogSteps(MapOf({nan, 0, -1}), {0, 1}, 0.5, {}, {}), Each(0));
}

TEST(LogStepsTest, LayersAndHeadsCountAlikeWhateverTheirScale) {
  ScoreMap map(3, 2, 2);
  map.values = {9, 9,   1, 1,    // another run
                1, 300, 3, 100,  // head 0: 1 to 3, head 1: 3 to 1
                5, 5,   5, 5};   // no difference
  EXPECT_THAT(LogSteps(map, {1, 2}, 1, {}, {}), Each(0));
  EXPECT_LT(LogSteps(map, {0, 1}, 1, {}, {})[0], 0);
}

TEST(LogStepsTest, ProtectedTokensAreNeverCoarser) {
  const ScoreMap map = MapOf({1, 1, 1, 1, 1000});
  const uint8_t named[] = {0, 1, 0, 0, 0};
  const auto steps = LogSteps(map, {0, 1}, 0.5, {.first = 1, .last = 2}, named);
  EXPECT_EQ(steps[0], 0);
  EXPECT_EQ(steps[1], 0);
  EXPECT_GT(steps[2], 0);
  EXPECT_EQ(steps[3], 0);
  EXPECT_LT(steps[4], 0);
  // More protected than there are.
  EXPECT_THAT(LogSteps(MapOf({1, 1}), {0, 1}, 0.5, {.first = 9, .last = 9}, {}), Each(0));
}

class TokenClassTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kTokens = 128;

  static void SetUpTestSuite() {
    store_ = new CalibrationStore;
    for (const uint32_t run : {2, 3}) {
      const auto blob = FitCorrelated(spec_, run, {}, /*with_sensitivity=*/run == 2);
      ASSERT_TRUE(store_->Add(AsBytes(blob.value())).ok());
    }
  }
  static void TearDownTestSuite() { delete store_; }

  TokenClassTest() : raw_(CorrelatedPage(spec_, kTokens, 510, 128)) {
    // One token in eight is looked at a hundred times as much.
    for (uint32_t t = 0; t < kTokens; ++t) weights_.push_back(t % 8 == 3 ? 100 : 1);
    AttentionColumn& column = columns_["attn_sum"];
    column.heads = spec_.kv_heads;
    column.queries = 1000;
    for (uint32_t l = 0; l < spec_.layers; ++l) {
      for (const float w : weights_) column.scores.insert(column.scores.end(), spec_.kv_heads, w);
    }
  }

  absl::StatusOr<EncodedPage> Encode(absl::string_view recipe, bool with_report = true) const {
    const auto parsed = ParseRecipe(recipe);
    if (!parsed.ok()) return parsed.status();
    const auto codec = MakeCodec(*parsed, spec_, *store_);
    if (!codec.ok()) return codec.status();
    return (*codec)->Encode({.raw = raw_,
                             .tokens = kTokens,
                             .first_position = 128,
                             .key = "k",
                             .columns = with_report ? &columns_ : nullptr});
  }
  // Squared error, each token's weighed by its attention.
  double WeighedError(const EncodedPage& page) const {
    std::vector<uint8_t> back(raw_.size());
    const absl::Status status = DecodePage(page.header, page.segments, back, *store_);
    EXPECT_TRUE(status.ok()) << status;
    const JointVectors vectors(spec_, {{0, spec_.layers}, kTokens, 128});
    std::vector<float> x(kTokens * vectors.width()), y(x.size());
    EXPECT_TRUE(vectors.Gather(raw_, {0, kTokens}, x.data()));
    EXPECT_TRUE(vectors.Gather(back, {0, kTokens}, y.data()));
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      sum += weights_[i / vectors.width()] * (x[i] - y[i]) * (x[i] - y[i]);
    }
    return sum;
  }

  static inline CalibrationStore* store_ = nullptr;
  static inline const KvSpec spec_ = CorrelatedSpec();
  const std::vector<uint8_t> raw_;
  std::vector<float> weights_;
  AttentionColumns columns_;
};

TEST_F(TokenClassTest, AtEqualBytesWhatIsLookedAtIsCloser) {
  for (const char* codec :
       {"kvstow-cal(run=3,ratio=40)", "kvstow-cal(run=2,ratio=30)", "kvstow(ratio=10)"}) {
    const auto flat = Encode(codec);
    const auto classed = Encode(absl::StrCat("column(name=attn_sum)|class(power=0.4)|", codec));
    ASSERT_TRUE(flat.ok()) << flat.status();
    ASSERT_TRUE(classed.ok()) << classed.status();
    EXPECT_LT(classed->StoredBytes(), 1.03 * flat->StoredBytes()) << codec;
    EXPECT_LT(WeighedError(*classed), 0.9 * WeighedError(*flat)) << codec;
  }
}

TEST_F(TokenClassTest, WithoutAReportThePageIsAsItWas) {
  // Calibrations foretell classes, by sensitivities or by keys alone: they stay, to the byte.
  for (const char* codec : {"kvstow-cal(run=2,step=1)", "kvstow-cal(run=3,step=1)", "kvstow"}) {
    const auto plain = Encode(codec, false);
    const auto classed = Encode(absl::StrCat("column(name=attn_sum)|class|", codec), false);
    ASSERT_TRUE(classed.ok()) << classed.status();
    ASSERT_EQ(classed->segments.size(), plain->segments.size()) << codec;
    for (size_t i = 0; i < plain->segments.size(); ++i) {
      EXPECT_EQ(AsString(classed->segments[i].span()), AsString(plain->segments[i].span()))
          << codec;
    }
    EXPECT_EQ(WeighedError(*classed), WeighedError(*plain)) << codec;
  }
}

TEST_F(TokenClassTest, PlanesWithoutAReportKeepTheirError) {
  const auto flat = Encode("planes(step=0.51,levels=3)", false);
  const auto classed = Encode("column(name=attn_sum)|class|planes(step=0.51,levels=3)", false);
  ASSERT_TRUE(classed.ok()) << classed.status();
  EXPECT_EQ(WeighedError(*classed), WeighedError(*flat));
  EXPECT_LT(classed->StoredBytes(), flat->StoredBytes() + kTokens);
}

TEST_F(TokenClassTest, PlanesOfSomeTokensAndFewerLevelsDecode) {
  const auto page = Encode("column(name=attn_sum)|class(power=0.5)|kvstow").value();
  for (const uint32_t levels : {1u, 3u}) {
    const size_t kept = SegmentsForLevels(page.header, levels);
    const std::vector<std::optional<SharedBytes>> some(page.segments.begin(),
                                                       page.segments.begin() + kept);
    std::vector<uint8_t> whole(raw_.size());
    ASSERT_TRUE(DecodePage(page.header, some, {}, whole).ok());
    std::vector<uint8_t> part(PageBytes(spec_, 30)), expected(part.size());
    ASSERT_TRUE(DecodePage(page.header, some, {.tokens = {70, 30}}, part).ok());
    CopyTokens(spec_, spec_.layers, kTokens, whole, {70, 30}, expected);
    EXPECT_EQ(part, expected) << levels;
  }
}

TEST_F(TokenClassTest, AnyScoreMakesClassesAndTheHeaderSaysWhich) {
  for (const char* score : {"key_norm|norm(kind=softmax)", "random(seed=3)", "position|norm(max)",
                            "column(attn_sum)|protect(first=4,last=8)"}) {
    EXPECT_TRUE(Encode(absl::StrCat(score, "|class|kvstow")).ok()) << score;
    const auto page = Encode(absl::StrCat(score, "|class(power=0.2)|kvstow-cal(run=2,step=1)"));
    ASSERT_TRUE(page.ok()) << score << ": " << page.status();
    EXPECT_THAT(page->header.pipeline, HasSubstr("|class(power=0.2)|joint("));
    WeighedError(*page);  // it decodes
    const std::vector<std::optional<SharedBytes>> all(page->segments.begin(), page->segments.end());
    const auto kept = KeptTokens(page->header, all);
    ASSERT_TRUE(kept.ok()) << kept.status();
    EXPECT_FALSE(kept->has_value()) << "no token is dropped";
  }
}

TEST_F(TokenClassTest, BadInputIsNamed) {
  const auto message = [&](absl::string_view recipe) {
    const auto page = Encode(recipe);
    EXPECT_TRUE(absl::IsInvalidArgument(page.status())) << recipe << ": " << page.status();
    return std::string(page.status().message());
  };
  EXPECT_THAT(message("random|class|int8"), HasSubstr("may follow 'class'"));
  EXPECT_THAT(message("random|class"), HasSubstr("may follow 'class'"));
  EXPECT_THAT(message("random|class|hadamard|kvstow-cal(run=3)"), HasSubstr("'class'"));
  EXPECT_THAT(message("class|kvstow-cal(run=3)"), HasSubstr("leave 0 scores"));
  EXPECT_THAT(message("random|class(power=3)|kvstow-cal(run=3)"), HasSubstr("power"));
  EXPECT_THAT(message("random|budget(keep=0.5)|kvstow-cal(run=3)"), HasSubstr("'class'"));
  EXPECT_THAT(message("random|class|random|budget(0.5)|int8"), HasSubstr("makes no score"));
  columns_["attn_sum"].scores.pop_back();
  EXPECT_THAT(message("column(name=attn_sum)|class|kvstow-cal(run=3)"), HasSubstr("attn_sum"));
}

TEST_F(TokenClassTest, BodiesCutWithinTheClassesAreRefused) {
  const auto page = Encode("column(name=attn_sum)|class|kvstow-cal(run=3,step=1)").value();
  for (const size_t size : {size_t{0}, size_t{kTokens * 3 / 8 - 1}}) {
    PageHeader header = page.header;
    std::vector<SharedBytes> bodies = {SharedBytes::CopyOf(page.segments[0].span().first(size))};
    header.segments[0].bytes = static_cast<uint32_t>(size);
    std::vector<uint8_t> back(raw_.size());
    EXPECT_TRUE(absl::IsDataLoss(DecodePage(header, bodies, back, *store_))) << size;
  }
}

TEST(WithKeepTest, TheBudgetsShareIsReplaced) {
  const auto pipeline = [](absl::string_view text, double keep) {
    const auto recipe = WithKeep(ParseRecipe(text).value(), keep);
    return recipe.ok() ? recipe->pipeline() : std::string(recipe.status().message());
  };
  EXPECT_THAT(pipeline("snapkv|int8", 0.25), HasSubstr("budget(keep=0.250000)|affine"));
  EXPECT_THAT(pipeline("kvzap", 0.125), HasSubstr("budget(keep=0.125000)"));
  EXPECT_THAT(pipeline("int8", 0.5), HasSubstr("keeps every token"));
  EXPECT_THAT(pipeline("random|class|kvstow-cal", 0.5), HasSubstr("keeps every token"));
}

}  // namespace
}  // namespace kvstow::testing
