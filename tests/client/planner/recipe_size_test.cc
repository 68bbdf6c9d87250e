#include "client/planner/recipe_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "absl/strings/str_cat.h"

namespace kvstow::planner {
namespace {

using testing::AllOf;
using testing::HasSubstr;

KvSpec SpecOf(const char* name, uint32_t ranks, absl::string_view dtype = "") {
  const auto model = LoadModel(name, dtype);
  EXPECT_TRUE(model.ok()) << model.status();
  const auto rank = DivideOverRanks(*model, ranks);
  EXPECT_TRUE(rank.ok()) << rank.status();
  const auto spec = SpecOfRank(*model, *rank, 64);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *spec;
}

std::string ErrorOf(const std::string& recipe) {
  const auto size = SizeOfRecipe(recipe, SpecOf("smollm2-135m", 1));
  EXPECT_EQ(size.status().code(), absl::StatusCode::kInvalidArgument) << recipe;
  return std::string(size.status().message());
}

TEST(RecipeSize, RecipesOfAFixedRateAreMeasured) {
  const KvSpec spec = SpecOf("smollm2-135m", 1);
  EXPECT_EQ(spec.layers, 30u);
  const std::pair<const char*, double> expected[] = {
      {"raw", 1}, {"int8", 16 / 8.5}, {"kivi4", 16 / 5.0}, {"turboquant4", 16 / 4.25}};
  for (const auto& [recipe, ratio] : expected) {
    const auto size = SizeOfRecipe(recipe, spec);
    ASSERT_TRUE(size.ok()) << size.status();
    EXPECT_NEAR(size->ratio, ratio, 0.015 * ratio) << recipe;
    EXPECT_EQ(size->origin, Origin::kMeasured);
  }
}

TEST(RecipeSize, LatentsAndFp8PagesHaveRecipesToo) {
  const auto latent = SizeOfRecipe("mla8", SpecOf("deepseek-v3", 8));
  ASSERT_TRUE(latent.ok()) << latent.status();
  EXPECT_NEAR(latent->ratio, 1.76, 0.02);
  const auto fp8 = SizeOfRecipe("raw", SpecOf("llama-3.2-1b", 1, "fp8"));
  ASSERT_TRUE(fp8.ok()) << fp8.status();
  EXPECT_NEAR(fp8->ratio, 1, 0.01);
}

TEST(RecipeSize, AGivenRatioIsTaken) {
  const KvSpec spec = SpecOf("smollm2-135m", 1);
  for (const char* text : {"kvstow=6.5", "snapkv(keep=0.25)|int8=6.5", "anything at all=6.5"}) {
    const auto size = SizeOfRecipe(text, spec);
    ASSERT_TRUE(size.ok()) << size.status();
    EXPECT_EQ(size->ratio, 6.5);
    EXPECT_EQ(size->origin, Origin::kGiven);
    EXPECT_EQ(size->recipe, std::string(text).substr(0, std::string(text).size() - 4));
    EXPECT_EQ(size->StoredBytes(23040), 3545u) << "3544.6, rounded up";
  }
}

TEST(RecipeSize, RecipesOfASpaceTakeARatio) {
  const KvSpec spec = SpecOf("smollm2-135m", 1);
  for (const char* text : {"auto", "auto(divergence=0.01)", "hot=int8,cold=kvstow"}) {
    const auto size = SizeOfRecipe(absl::StrCat(text, "=14"), spec);
    ASSERT_TRUE(size.ok()) << size.status();
    EXPECT_EQ(size->recipe, text);
    EXPECT_EQ(size->ratio, 14);
  }
  EXPECT_THAT(ErrorOf("auto"), AllOf(HasSubstr("`kvstow stats`"), HasSubstr("'auto=RATIO'")));
  EXPECT_THAT(ErrorOf("auto(divergence=0.01)"), HasSubstr("'auto(divergence=0.01)=RATIO'"));
  EXPECT_THAT(ErrorOf("hot=int8,cold=kvstow"), HasSubstr("name one form"));
}

TEST(RecipeSize, TheSpeedOfItsDecoderMayBeGiven) {
  const KvSpec spec = SpecOf("smollm2-135m", 1);
  const auto measured = SizeOfRecipe("int8@5GB/s", spec);
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_EQ(measured->recipe, "int8");
  EXPECT_EQ(measured->origin, Origin::kMeasured);
  EXPECT_EQ(measured->decode_bytes_per_s, 5e9);
  EXPECT_EQ(measured->decode_origin, Origin::kGiven);
  const auto given = SizeOfRecipe("kvstow=6@800MB/s", spec);
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_EQ(given->ratio, 6);
  EXPECT_EQ(given->decode_bytes_per_s, 8e8);
  EXPECT_THAT(ErrorOf("int8@fast"), AllOf(HasSubstr("int8@fast"), HasSubstr("bandwidth")));
  EXPECT_THAT(ErrorOf("int8@0"), HasSubstr("bandwidth"));
}

class RoundtripFile : public testing::Test {
 protected:
  absl::Status Add(const std::string& text) {
    std::ofstream(path_) << text;
    return AddRoundtrips(path_, recipes_);
  }
  std::string ErrorOfText(const std::string& text) {
    const absl::Status status = Add(text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    return std::string(status.message());
  }

  const std::string path_ = testing::TempDir() + "/kvstow_roundtrip_" +
                            testing::UnitTest::GetInstance()->current_test_info()->name();
  std::vector<RecipeSize> recipes_;
};

constexpr char kRun[] =
    R"({"recipe":"kvstow","raw_bytes":6000,"stored_bytes":1000,"decode_seconds":0.000003})";

TEST_F(RoundtripFile, EachLineIsARecipe) {
  ASSERT_TRUE(Add(absl::StrCat(kRun, "\n\n", kRun, "\n")).ok());
  ASSERT_EQ(recipes_.size(), 2u);
  for (const RecipeSize& r : recipes_) {
    EXPECT_EQ(r.recipe, "kvstow");
    EXPECT_DOUBLE_EQ(r.ratio, 6);
    EXPECT_EQ(r.origin, Origin::kMeasured);
    EXPECT_DOUBLE_EQ(r.decode_bytes_per_s, 2e9);
    EXPECT_EQ(r.decode_origin, Origin::kMeasured);
  }
}

TEST_F(RoundtripFile, WhatIsWrongIsNamed) {
  EXPECT_EQ(AddRoundtrips(path_ + "_not_there", recipes_).code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(ErrorOfText(""), AllOf(HasSubstr(path_), HasSubstr("empty")));
  EXPECT_THAT(ErrorOfText(absl::StrCat(kRun, "\nratio 3")), HasSubstr(path_ + ":2: is not"));
  EXPECT_THAT(ErrorOfText("{}"), HasSubstr("recipe"));
  EXPECT_THAT(ErrorOfText(R"({"recipe":"a","raw_bytes":1})"), HasSubstr("stored_bytes is missing"));
  for (const char* wrong : {"0", "-1", "\"6\"", "null", "1e300"}) {
    EXPECT_THAT(ErrorOfText(absl::StrCat(R"({"recipe":"a","raw_bytes":)", wrong, "}")),
                HasSubstr("raw_bytes must be"))
        << wrong;
  }
  EXPECT_THAT(ErrorOfText(std::string(1 << 20, '{')), HasSubstr("too long"));
}

TEST(RecipeSize, WhatDependsOnTheDataAsksForItsRatio) {
  EXPECT_THAT(ErrorOf("kvstow"), AllOf(HasSubstr("roundtrip"), HasSubstr("'kvstow=RATIO'")));
  EXPECT_THAT(ErrorOf("lossless"), HasSubstr("lossless=RATIO"));
  EXPECT_THAT(ErrorOf("snapkv(keep=0.25)|int8"), HasSubstr("attention"));
  EXPECT_THAT(ErrorOf("kvquant3"), HasSubstr("calibration"));
  EXPECT_THAT(ErrorOf("nosuch"), HasSubstr("nosuch"));
  for (const char* text : {"int8=0.5", "int8=", "int8=x", "=4", "int8=nan", "int8=inf"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("ratio")) << text;
  }
}

}  // namespace
}  // namespace kvstow::planner
