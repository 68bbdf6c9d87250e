// Any tokens of any layers of a page decode to that part of the whole, whatever recipe made it.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/calibration/calibration.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/ops.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/codec/presets.h"
#include "tests/kernels/correlated_pages.h"

namespace kvstow::testing {
namespace {

constexpr uint32_t kTokens = 37;

// Every preset, and pipelines that cut otherwise: groups and codes that straddle bytes.
std::vector<std::string> Recipes() {
  std::vector<std::string> recipes;
  for (const Preset& preset : CodecPresets()) recipes.emplace_back(preset.name);
  for (const char* more :
       {"affine(bits=3,group=5,k=channel,v=token)", "symmetric(bits=5,group=7,k=token,v=channel)",
        "symmetric(bits=4,k=tensor,v=tensor)", "mean(part=kv)|hadamard|levels(1,3)",
        "planes(step=0.5,levels=2)", "joint(run=2,stream=16)"}) {
    recipes.emplace_back(more);
  }
  return recipes;
}

class RangeDecode : public ::testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() {
    calibrations_ = new CalibrationStore;
    for (const uint32_t layers_per_run : {1, 2}) {
      const auto blob = FitCorrelated(Spec(), layers_per_run, {}, layers_per_run == 2);
      ASSERT_TRUE(blob.ok()) << blob.status();
      ASSERT_TRUE(calibrations_->Add(AsBytes(*blob)).ok());
    }
    for (const Preset& preset : CodecPresets()) {
      const Recipe recipe = *ParseRecipe(preset.name);
      if (MakeCodec(recipe, Spec(), *calibrations_).ok()) continue;
      const auto blob = FitRecipe(preset.name, Spec());
      ASSERT_TRUE(blob.ok()) << preset.name << blob.status();
      ASSERT_TRUE(calibrations_->Add(AsBytes(*blob)).ok());
    }
  }
  static void TearDownTestSuite() { delete calibrations_; }

  // Head dims that are no multiple of 8, so that parts of bodies end within bytes.
  static KvSpec Spec() { return CorrelatedSpec(/*layers=*/3, /*dim_k=*/18, /*dim_v=*/9); }

  static EncodedPage Encode(uint64_t first_position) {
    const auto codec = MakeCodec(*ParseRecipe(GetParam()), Spec(), *calibrations_);
    EXPECT_TRUE(codec.ok()) << codec.status();
    if (!codec.ok()) return {};
    const auto raw = CorrelatedPage(Spec(), kTokens, 3, first_position);
    auto page = (*codec)->Encode({.raw = raw, .tokens = kTokens, .first_position = first_position});
    EXPECT_TRUE(page.ok()) << page.status();
    return page.ok() ? *std::move(page) : EncodedPage{};
  }

  static std::vector<uint8_t> Decode(const EncodedPage& page, size_t segments, PageRange wanted) {
    const std::vector<std::optional<SharedBytes>> bodies(page.segments.begin(),
                                                         page.segments.begin() + segments);
    std::vector<uint8_t> out(wanted.layers.count * LayerBytes(Spec(), wanted.tokens.count));
    const absl::Status status = DecodePage(page.header, bodies, wanted, out, *calibrations_);
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }

  static CalibrationStore* calibrations_;
};
CalibrationStore* RangeDecode::calibrations_ = nullptr;

TEST_P(RangeDecode, IsThatPartOfTheWhole) {
  const size_t layer = LayerBytes(Spec(), kTokens);
  for (const uint64_t first_position : {0, 2, 512}) {
    const EncodedPage page = Encode(first_position);
    ASSERT_FALSE(page.segments.empty());
    EXPECT_FALSE(page.header.fell_back);
    for (const size_t segments : {page.segments.size(), SegmentsForLevels(page.header, 1)}) {
      const auto whole = Decode(page, segments, {{0, 3}, {0, kTokens}});
      for (const LayerRange layers : {LayerRange{0, 3}, LayerRange{1, 1}, LayerRange{1, 2}}) {
        for (uint32_t first = 0; first < kTokens; ++first) {
          for (uint32_t count = 1; first + count <= kTokens; count += count < 9 ? 1 : 7) {
            const PageRange wanted{layers, {first, count}};
            std::vector<uint8_t> expected(layers.count * LayerBytes(Spec(), count));
            CopyTokens(Spec(), layers.count, kTokens,
                       std::span(whole).subspan(layers.first * layer), wanted.tokens, expected);
            ASSERT_EQ(Decode(page, segments, wanted), expected)
                << "tokens " << first << " + " << count << " of layers " << layers.first << " + "
                << layers.count << " at " << first_position << ", " << segments << " segments";
          }
        }
      }
    }
  }
}

TEST_P(RangeDecode, TokensThatThePageHasNotAreRefused) {
  const EncodedPage page = Encode(0);
  const std::vector<std::optional<SharedBytes>> bodies(page.segments.begin(), page.segments.end());
  std::vector<uint8_t> out(PageBytes(Spec(), 2));
  for (const TokenRange wrong : {TokenRange{kTokens, 1}, TokenRange{kTokens - 1, 2},
                                 TokenRange{kTokens, 0}, TokenRange{1, UINT32_MAX}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(
        DecodePage(page.header, bodies, {.tokens = wrong}, out, *calibrations_)));
  }
  // A count of 0 is all that follow.
  EXPECT_TRUE(
      DecodePage(page.header, bodies, {.tokens = {kTokens - 2, 0}}, out, *calibrations_).ok());
}

INSTANTIATE_TEST_SUITE_P(Recipes, RangeDecode, ::testing::ValuesIn(Recipes()),
                         [](const auto& info) { return absl::StrCat("recipe", info.index); });

// F32 keeps each bit of the angles that K turns by. Far into a text, an angle that is computed anew
// differs from one that the token before gave, and the page is long enough to have both.
TEST(RangeDecodeOfLongPages, IsThatPartOfTheWholeBitByBit) {
  constexpr uint32_t kLong = 150;
  constexpr uint64_t kFar = 1'000'000'000;
  KvSpec spec = SpecOf(DType::kF32, 2, 2, 16, 8, kLong);
  spec.rope.layout = RopeSpec::Layout::kHalf;
  CalibrationStore calibrations;
  ASSERT_TRUE(calibrations.Add(AsBytes(FitCorrelated(spec, 2).value())).ok());
  const auto raw = CorrelatedPage(spec, kLong, 3, kFar);
  for (const char* recipe : {"planes(step=0.5)", "joint(run=2,stream=16)"}) {
    SCOPED_TRACE(recipe);
    const auto codec = MakeCodec(*ParseRecipe(recipe), spec, calibrations).value();
    const auto page = codec->Encode({.raw = raw, .tokens = kLong, .first_position = kFar}).value();
    const std::vector<std::optional<SharedBytes>> bodies(page.segments.begin(),
                                                         page.segments.end());
    const auto decode = [&](TokenRange tokens) {
      std::vector<uint8_t> out(PageBytes(spec, tokens.count));
      EXPECT_TRUE(DecodePage(page.header, bodies, {.tokens = tokens}, out, calibrations).ok());
      return out;
    };
    const auto whole = decode({0, kLong});
    for (const uint32_t first : {1u, 20u, 63u, 64u, 65u, 100u, 149u}) {
      const TokenRange part{first, kLong - first};
      std::vector<uint8_t> expected(PageBytes(spec, part.count));
      CopyTokens(spec, spec.layers, kLong, whole, part, expected);
      EXPECT_EQ(decode(part), expected) << "tokens from " << first;
    }
  }
}

// A reader of one token does not decode the whole slab. The cases are quantizers whose scales are a
// vector's, or a group of tokens'.
TEST(BodyParts, SumUpToTheBodyAndCutCloseToWhatIsWanted) {
  const struct {
    const char* recipe;
    TokenRange cut;  // around token 70 of 100, of K with 3 heads of 10
  } cases[] = {
      {"affine(bits=8,group=64)", {70, 1}},
      {"affine(bits=3,group=4)", {68, 3}},
      {"affine(bits=4,group=32,k=channel)", {64, 7}},
      {"affine(bits=8,k=tensor)", {70, 1}},
      {"symmetric(bits=5,group=7,k=channel)", {56, 15}},
      {"block(format=nvfp4)", {70, 1}},
      {"block(format=q8_0)", {70, 1}},
      {"codebook(bits=4)", {70, 1}},
      {"levels(2,2,4)", {70, 1}},
      {"minifloat(format=e4m3)", {70, 1}},
      {"sketch(bits=4)", {68, 3}},
  };
  const SlabShape shape{Part::kK, 100, 3, 10};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.recipe);
    const auto recipe = ParseRecipe(c.recipe);
    const OpArguments arguments(recipe->ops()[0]);
    const auto quantizer = FindOp(arguments.op().name)->make_quantizer(arguments);
    ASSERT_TRUE(quantizer.ok()) << quantizer.status();
    for (uint32_t level = 0; level < (*quantizer)->levels(); ++level) {
      EXPECT_EQ(BodyBytes((*quantizer)->Parts(shape, level), shape.tokens),
                (*quantizer)->LevelBytes(shape, level));
    }
    const TokenRange cut = CutAround((*quantizer)->Parts(shape, 0), shape.tokens, {70, 1});
    EXPECT_EQ(cut.first, c.cut.first);
    EXPECT_EQ(cut.count, c.cut.count);
  }
}

}  // namespace
}  // namespace kvstow::testing
