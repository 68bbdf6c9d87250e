#include "client/planner/recipe_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
