#include "kernels/recipe/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/codec/presets.h"
#include "kernels/codec/run_codecs.h"
#include "kernels/methods/run_codec.h"
#include "tests/kernels/pages.h"

namespace kvstow {
namespace {

using ::testing::HasSubstr;

std::string PipelineOf(absl::string_view text) {
  const auto recipe = ParseRecipe(text);
  return recipe.ok() ? recipe->pipeline() : recipe.status().ToString();
}

TEST(RecipeTest, APresetAndItsPipelineAreTheSameRecipe) {
  for (const Preset& preset : CodecPresets()) {
    const auto by_name = ParseRecipe(preset.name), written = ParseRecipe(preset.pipeline);
    ASSERT_TRUE(by_name.ok() && written.ok()) << preset.name;
    EXPECT_EQ(*by_name, *written);
    EXPECT_EQ(by_name->pipeline(), preset.pipeline) << "not canonical";
    EXPECT_EQ(by_name->text(), preset.name);
    EXPECT_FALSE(preset.summary.empty());
    const auto codec = MakeCodec(*by_name, testing::SpecOf(DType::kF16, 2, 2, 64, 64, 16));
    EXPECT_EQ(codec.status().code(), preset.needs == "calibration"
                                         ? absl::StatusCode::kFailedPrecondition
                                         : absl::StatusCode::kOk)
        << preset.name;
  }
}

TEST(RecipeTest, ParsePrintsBackWhatWasParsed) {
  for (const char* text : {"raw", "int8", "int8(group=32)", "hadamard|levels(2,2,4)",
                           "run(2)|affine(bits=4,k=channel)", "no-such.op_1(a,b=2)|x"}) {
    const auto recipe = ParseRecipe(text);
    ASSERT_TRUE(recipe.ok()) << recipe.status();
    EXPECT_EQ(recipe->text(), text);
    const auto again = ParseRecipe(recipe->pipeline());
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, *recipe);
    EXPECT_EQ(again->pipeline(), recipe->pipeline());
  }
  EXPECT_EQ(ParseRecipe(" hadamard | levels( 2 , 2,4 ) ")->text(), "hadamard|levels(2,2,4)");
}

TEST(RecipeTest, ArgumentsByPlaceGetTheirNames) {
  EXPECT_EQ(PipelineOf("affine(8,64)"), PipelineOf("int8"));
  EXPECT_EQ(PipelineOf("affine(4,32,channel)"), "affine(bits=4,group=32,k=channel)");
  EXPECT_EQ(PipelineOf("run(3)|raw"), "run(layers=3)|raw");
}

TEST(RecipeTest, ArgumentsOfAPresetReplaceThoseOfItsOps) {
  EXPECT_EQ(PipelineOf("int8(group=32)"), "affine(bits=8,group=32)");
  EXPECT_EQ(PipelineOf("kivi4(bits=2)"), "affine(bits=2,group=32,k=channel,v=token)");
  EXPECT_THAT(PipelineOf("int8(grup=32)"), HasSubstr("by name one of: bits, group"));
  EXPECT_THAT(PipelineOf("int8(32)"), HasSubstr("INVALID_ARGUMENT"));
  EXPECT_THAT(PipelineOf("int8(group=32,group=64)"), HasSubstr("'int8': give 'group' only once"));
  EXPECT_THAT(PipelineOf("raw(1)"), ::testing::StrEq("raw(1)"));  // an op; MakeCodec refuses it
}

TEST(RecipeTest, ErrorsNameThePlace) {
  const struct {
    const char *text, *message;
  } cases[] = {
      {"auto", "recipe 'auto' is one of a space"},
      {" auto", "is one of a space"},
      {"auto (divergence=0.01)", "is one of a space"},
      {"auto(divergence=0.01)", "name one form here"},
      {"hot=int8,cold=kvstow", "is one of a space"},
      {"", "at character 1"},
      {"Int8", "at character 1"},
      {"8int", "at character 1"},
      {"int8(", "an argument"},
      {"int8(group=", "at character 12"},
      {"int8(group=32", "',' or ')'"},
      {"int8)", "at character 5"},
      {"a||b", "at character 3"},
      {"a|", "at character 3"},
      {"a b", "at character 3"},
      {"a(b=c=d)", "at character 6"},
      {"affine(1,2,token,token,5)", "at most 4"},
      {"a(\x01)", "an argument"},
  };
  for (const auto& c : cases) {
    const auto recipe = ParseRecipe(c.text);
    EXPECT_TRUE(absl::IsInvalidArgument(recipe.status())) << c.text;
    EXPECT_THAT(std::string(recipe.status().message()), HasSubstr(c.message)) << c.text;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(ParseRecipe(std::string(2000, 'a')).status()));
}

TEST(RecipeTest, RecipesThatDoNotFitAreRefusedWithTheReason) {
  const struct {
    const char *text, *message;
  } cases[] = {
      {"nosuch", "no op or preset 'nosuch'"},
      {"hadamard", "must end in"},
      {"run(2)", "must end in"},
      {"raw|raw", "nothing may follow 'raw'"},
      {"raw(1)", "argument"},
      {"hadamard|raw", "takes no transform"},
      {"affine(bits=8)|hadamard", "nothing may follow 'affine'"},
      {"hadamard|run(2)|raw", "'run' must stand first"},
      {"run(0)|raw", "from 1 to"},
      {"run(layers=1,layers=2)|raw", "given twice"},
      {"affine(bits=9)", "from 1 to 8"},
      {"affine(bits=x)", "from 1 to 8"},
      {"affine(group=0)", "from 1 to"},
      {"affine(axis=token)", "'axis'"},
      {"affine(k=head)", "one of: token, channel, tensor"},
      {"symmetric(bits=1)", "from 2 to 8"},
      {"minifloat(format=e9m9)", "one of: e4m3"},
      {"block(format=q5_0)", "one of: q8_0, q4_0, nvfp4, mxfp4, mxfp8"},
      {"codebook(bits=5)", "from 1 to 4"},
      {"codebook(norm=l1)", "one of: plain, corrected"},
      {"sketch(bits=1)", "from 2 to 5"},
      {"signs(rows=65)", "from 1 to 64"},
      {"polar(4)", "it takes: none"},
      {"merge(heads=1)|affine", "from 2 to 64"},
      {"merge|rest|affine", "'rest' has no place here"},
      {"clip(share=2)|affine", "from 0.1 to 1"},
      {"rope", "must end in"},
      {"rope|raw", "takes no exact codec"},
      {"rope|rope|affine", "'rope' must stand first"},
      {"rope(1)|affine", "unknown"},
      {"hadamard|rope|affine", "'rope' must stand first"},
      {"deltas(every=1)", "from 2 to"},
      {"deltas(early=9)", "from 0.01 to 8"},
      {"bins(v_then=3)", "from 4 to 256"},
      {"sharedbasis(k=0)", "from 0.001 to 1"},
      {"bins|affine", "nothing may follow 'bins'"},
      {"keep(4)", "it takes: none"},
      {"lowrank(rank=0)", "from 1 to 64"},
      {"sparse(share=0.6)|affine", "from 0.001 to 0.5"},
      {"sparse(k=tensor)|affine", "one of: channel, token"},
      {"svd", "needs the bits"},
      {"svd(9)", "each 0 to 8"},
      {"svd(0)", "the first not 0"},
      {"svd(2,4)", "none more than the one before"},
      {"svd(bits=4)", "each 0 to 8"},
      {"outliers(share=1)|affine|rest|affine", "from 0.01 to 0.99"},
      {"outliers(group=0)|affine|rest|affine", "from 1 to"},
      {"outliers|affine", "'rest' must follow 'affine'"},
      {"outliers|affine|rest", "must end in"},
      {"outliers|rest|affine", "'rest' has no place here"},
      {"outliers|affine|rest(1)|affine", "unknown"},
      {"latent(rope=0)|affine|rest|affine", "from 1 to"},
      {"anchor(every=1)|affine|rest|affine", "from 2 to"},
      {"k|affine", "'v' must follow 'affine'"},
      {"k|affine|v|raw", "'raw' takes no transform"},
      {"v|affine", "'v' has no place here"},
      {"hadamard|k|affine|v|affine", "'k' has no place here"},
      {"k|affine|v|affine|affine", "nothing may follow 'affine'"},
      {"affine|residual", "must end in"},
      {"affine|residual|nosuch", "no op or preset 'nosuch'"},
      {"residual|affine", "'residual' has no place here"},
      {"mean(part=v)|affine", "one of: k, kv"},
      {"mean", "must end in"},
      {"levels", "needs the bits"},
      {"levels(2,2,5)", "1 to 8 in all"},
      {"levels(0)", "1 to 8 in all"},
      {"levels(bits=2)", "1 to 8 in all"},
      {"hadamard(2)|levels(2)", "argument"},
  };
  const KvSpec spec = testing::SpecOf(DType::kF16, 2, 2, 64, 64, 16);
  for (const auto& c : cases) {
    const auto recipe = ParseRecipe(c.text);
    ASSERT_TRUE(recipe.ok()) << recipe.status();
    const auto codec = MakeCodec(*recipe, spec);
    EXPECT_TRUE(absl::IsInvalidArgument(codec.status())) << c.text;
    EXPECT_THAT(std::string(codec.status().message()), HasSubstr(c.message)) << c.text;
  }
}

// What a codec makes must be read again: a page's header holds 16 levels, and 1,024 bytes of
// pipeline, where arguments have their names.
TEST(RecipeTest, RecipesThatNoHeaderHoldsAreRefused) {
  const KvSpec spec = testing::SpecOf(DType::kF16, 2, 2, 64, 64, 16);
  const std::vector<uint8_t> raw = testing::GaussianPage(spec, 16);
  const auto made_and_read = [&](absl::string_view text) -> absl::Status {
    KVSTOW_ASSIGN_OR_RETURN(const auto recipe, ParseRecipe(text));
    KVSTOW_ASSIGN_OR_RETURN(const auto codec, MakeCodec(recipe, spec));
    KVSTOW_ASSIGN_OR_RETURN(const auto page, codec->Encode({.raw = raw, .tokens = 16}));
    return ParsePageHeader(page.header_bytes.span()).status();
  };
  const auto means = [](size_t count) {
    std::string text;
    for (size_t i = 0; i < count; ++i) text += "mean(k)|";
    return text + "affine";
  };
  const std::string eight = "levels(1,1,1,1,1,1,1,1)";
  for (const std::string& text : {absl::StrCat(eight, "|residual|", eight), means(78)}) {
    EXPECT_TRUE(made_and_read(text).ok()) << text << ": " << made_and_read(text);
  }
  const absl::Status levels =
      made_and_read(absl::StrCat(eight, "|residual|", eight, "|residual|keep"));
  EXPECT_TRUE(absl::IsInvalidArgument(levels)) << levels;
  EXPECT_THAT(std::string(levels.message()), HasSubstr("17 levels; a page has at most 16"));
  const absl::Status bytes = made_and_read(means(79));
  EXPECT_TRUE(absl::IsInvalidArgument(bytes)) << bytes;
  EXPECT_THAT(std::string(bytes.message()), HasSubstr("1033 characters; the limit is 1024"));
}

TEST(RecipeTest, Float8PagesTakeOnlyExactRecipes) {
  const KvSpec spec = testing::SpecOf(DType::kF8E4M3, 2, 2, 64, 64, 16);
  for (const Preset& preset : CodecPresets()) {
    const auto codec = MakeCodec(*ParseRecipe(preset.name), spec);
    if (preset.name == "raw" || preset.name == "lossless") {
      EXPECT_TRUE(codec.ok()) << codec.status();
    } else {
      EXPECT_TRUE(absl::IsInvalidArgument(codec.status())) << preset.name;
    }
  }
}

TEST(RecipeTest, ARunHasAboutAMebibyteUnlessAsked) {
  const auto layers = [](absl::string_view text, const KvSpec& spec, uint32_t levels = 1) {
    return LayersPerRun(*ParseRecipe(text), spec, levels).value_or(0);
  };
  EXPECT_EQ(layers("raw", testing::SpecOf(DType::kF16, 30, 3, 64, 64, 256)), 5u);
  EXPECT_EQ(layers("raw", testing::SpecOf(DType::kF16, 30, 3, 64, 64, 16)), 30u);
  EXPECT_EQ(layers("raw", testing::SpecOf(DType::kF16, 32, 8, 128, 128, 1024)), 1u);
  EXPECT_EQ(layers("run(7)|raw", testing::SpecOf(DType::kF16, 30, 3, 64, 64, 256)), 7u);
  EXPECT_EQ(layers("run(99)|raw", testing::SpecOf(DType::kF16, 30, 3, 64, 64, 256)), 30u);
  // Never more segments than a page may have.
  EXPECT_EQ(layers("raw", testing::SpecOf(DType::kF16, 1024, 8, 64, 64, 1024), 8), 2u);
}

}  // namespace
}  // namespace kvstow
