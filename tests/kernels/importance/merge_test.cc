// Values of dropped tokens in those kept.
#include "kernels/importance/merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "tests/kernels/pages.h"

namespace kvstow::testing {
namespace {

using ::testing::ElementsAre;

TEST(MergeValuesTest, ADroppedValueGoesToTheNearestKey) {
  const std::vector<float> keys = {1, 0, 0, 2, 3, 1, 0, 1, -1, 0};
  const std::vector<uint8_t> keep = {1, 1, 0, 0, 0};
  std::vector<float> values = {10, 20, 40, 60, 12};
  // Token 2 points where 0 does, 3 where 1 does; 4 is across from 0 and as far from 1 as can be.
  MergeValues(keys, keep, values);
  EXPECT_THAT(std::span(values).first(2), ElementsAre(25, (20 + 60 + 12) / 3.0f));
}

TEST(MergeValuesTest, TiesGoToTheEarliestAndNothingToNobody) {
  const std::vector<float> keys = {1, 1, 1, 0};
  std::vector<float> values = {1, 2, 3, 5};
  MergeValues(keys, std::vector<uint8_t>{1, 1, 0, 0}, values);
  EXPECT_THAT(std::span(values).first(2), ElementsAre(3, 2));
  values = {1, 2, 3, 5};
  MergeValues(keys, std::vector<uint8_t>{0, 0, 0, 0}, values);
  EXPECT_THAT(values, ElementsAre(1, 2, 3, 5));
  MergeValues({}, {}, {});
}

TEST(MergeValuesTest, ARecipeMergesAndKeepsKeysAsTheyAre) {
  const uint32_t tokens = 16;
  const KvSpec spec = SpecOf(DType::kF32, 1, 1, 4, 4, 64);
  const auto raw = GaussianPage(spec, tokens, 7);
  const auto decoded = [&](const char* recipe) {
    const auto codec = MakeCodec(ParseRecipe(recipe).value(), spec).value();
    const auto page = codec->Encode({.raw = raw, .tokens = tokens}).value();
    std::vector<uint8_t> back(raw.size());
    EXPECT_TRUE(DecodePage(page.header, page.segments, back).ok());
    return ValuesOf(spec.dtype, back);
  };
  const auto plain = decoded("position|budget(keep=0.5)");
  const auto merged = decoded("position|budget(keep=0.5,merge=1)");
  const size_t slab = tokens * 4;
  for (size_t i = 0; i < slab; ++i) EXPECT_EQ(merged[i], plain[i]);
  // The last half of the tokens is kept; what was dropped stays 0.
  for (size_t i = slab; i < slab + slab / 2; ++i) EXPECT_EQ(merged[i], 0);
  EXPECT_NE(merged, plain);
}

}  // namespace
}  // namespace kvstow::testing
