// Summaries of keys: they bound the logits of every token of their page.
#include "kernels/importance/key_summary.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/digest.h"
#include "tests/kernels/pages.h"

namespace kvstow::testing {
namespace {

TEST(KeySummaryTest, NoLogitOfThePageIsLarger) {
  const uint32_t tokens = 20;
  const KvSpec spec = SpecOf(DType::kF16, 3, 2, 16, 8, 64);
  const auto raw = GaussianPage(spec, tokens, 5);
  const auto summary = SummarizeKeys(spec, raw, tokens);
  ASSERT_TRUE(summary.ok()) << summary.status();
  Gaussian next(9);
  std::vector<float> query(spec.head_dim_k);
  for (float& x : query) x = next();
  for (uint32_t layer = 0; layer < spec.layers; ++layer) {
    const size_t slab = SlabOffset(spec, layer, Part::kK, tokens);
    const auto keys =
        ValuesOf(spec.dtype, std::span(raw).subspan(slab, 2 * SlabValues(spec, Part::kK, tokens)));
    for (uint32_t head = 0; head < spec.kv_heads; ++head) {
      double largest = -INFINITY;
      for (uint32_t t = 0; t < tokens; ++t) {
        double logit = 0;
        for (size_t i = 0; i < query.size(); ++i) {
          logit += double{query[i]} * keys[(t * spec.kv_heads + head) * query.size() + i];
        }
        largest = std::max(largest, logit);
      }
      const double bound = LargestLogit(*summary, layer, head, query);
      EXPECT_GE(bound, largest - 1e-9);
      // Sum of |q| times the largest |k|: the bound is no cruder than that.
      double crude = 0;
      for (const float q : query) crude += std::abs(q) * 5;
      EXPECT_LT(bound, crude);
    }
  }
}

TEST(KeySummaryTest, OfOneTokenTheBoundIsItsLogit) {
  const KvSpec spec = SpecOf(DType::kF32, 1, 1, 4, 4, 64);
  const auto raw = GaussianPage(spec, 1, 6);
  const auto summary = SummarizeKeys(spec, raw, 1).value();
  EXPECT_EQ(summary.least, summary.largest);
  const float query[] = {1, -2, 3, 0};
  const double logit = summary.least[0] - 2.0 * summary.least[1] + 3.0 * summary.least[2];
  EXPECT_NEAR(LargestLogit(summary, 0, 0, query), logit, 1e-6);
}

TEST(KeySummaryTest, DroppedTokensDoNotCountAndAHeadWithoutAnyHasNoLogit) {
  const uint32_t tokens = 6;
  const KvSpec spec = SpecOf(DType::kF32, 2, 2, 4, 4, 64);
  const auto raw = GaussianPage(spec, tokens, 6);
  Selection kept{spec.layers, tokens, spec.kv_heads, std::vector<uint8_t>(2 * tokens * 2)};
  kept.keep[(0 * tokens + 3) * 2 + 1] = 1;  // of layer 0, head 1, token 3 alone
  const auto summary = SummarizeKeys(spec, raw, tokens, &kept).value();
  const auto keys =
      ValuesOf(spec.dtype, std::span(raw).first(4 * SlabValues(spec, Part::kK, tokens)));
  for (uint32_t c = 0; c < 4; ++c) {
    EXPECT_EQ(summary.least[4 + c], keys[(3 * 2 + 1) * 4 + c]);
    EXPECT_EQ(summary.largest[4 + c], keys[(3 * 2 + 1) * 4 + c]);
  }
  const float query[] = {1, 0, -1, 2};
  EXPECT_EQ(LargestLogit(summary, 0, 0, query), -INFINITY);
  EXPECT_EQ(LargestLogit(summary, 1, 1, query), -INFINITY);
  EXPECT_GT(LargestLogit(summary, 0, 1, query), -INFINITY);
}

TEST(KeySummaryTest, ItTravelsAndOtherSizesAreRefused) {
  const KvSpec spec = SpecOf(DType::kF16, 3, 2, 8, 4, 64);
  const auto summary = SummarizeKeys(spec, GaussianPage(spec, 5, 6), 5).value();
  const std::string bytes = SerializeSummary(summary);
  EXPECT_EQ(bytes.size(), SummaryBytes(spec, 3));
  const auto back = ReadSummary(spec, 3, AsBytes(bytes));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->least, summary.least);
  EXPECT_EQ(back->largest, summary.largest);
  EXPECT_TRUE(absl::IsInvalidArgument(ReadSummary(spec, 2, AsBytes(bytes)).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadSummary(spec, 0, {}).status()));
}

TEST(KeySummaryTest, BadPagesAreRefused) {
  const KvSpec spec = SpecOf(DType::kF16, 2, 1, 4, 4, 64);
  auto raw = GaussianPage(spec, 3, 6);
  EXPECT_TRUE(absl::IsInvalidArgument(SummarizeKeys(spec, raw, 2).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(SummarizeKeys(spec, {}, 0).status()));
  raw[1] = 0x7e, raw[0] = 0;  // NaN
  EXPECT_TRUE(absl::IsOutOfRange(SummarizeKeys(spec, raw, 3).status()));
  KvSpec fp8 = spec;
  fp8.dtype = DType::kF8E4M3;
  EXPECT_TRUE(absl::IsInvalidArgument(SummarizeKeys(fp8, raw, 3).status()));
}

}  // namespace
}  // namespace kvstow::testing
