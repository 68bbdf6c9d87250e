// Pages of which a policy keeps some tokens: those come back, the others are zeros and named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/calibration/calibration.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/importance/policy.h"
#include "tests/kernels/pages.h"

namespace kvstow {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kTokens = 40;

class SparseTest : public ::testing::TestWithParam<std::string> {
 protected:
  static KvSpec Spec() {
    KvSpec spec = testing::SpecOf(DType::kF16, 3, 2, 20, 16, 64);
    spec.rope = {.layout = RopeSpec::Layout::kHalf, .theta = 10000};
    return spec;
  }
  static std::vector<std::optional<SharedBytes>> Bodies(const EncodedPage& page) {
    return {page.segments.begin(), page.segments.end()};
  }
  static absl::StatusOr<EncodedPage> Encode(absl::string_view recipe, std::span<const uint8_t> raw,
                                            const AttentionColumns* columns = nullptr) {
    const auto parsed = ParseRecipe(recipe);
    if (!parsed.ok()) return parsed.status();
    const auto codec = MakeCodec(*parsed, Spec());
    if (!codec.ok()) return codec.status();
    return (*codec)->Encode({.raw = raw, .tokens = kTokens, .key = "k", .columns = columns});
  }
  // The floats of the head vector of a token.
  static std::vector<float> VectorOf(std::span<const uint8_t> raw, Part part, uint32_t layer,
                                     uint32_t token, uint32_t head) {
    const KvSpec spec = Spec();
    const uint32_t dim = part == Part::kK ? spec.head_dim_k : spec.head_dim_v;
    const size_t at =
        SlabOffset(spec, layer, part, kTokens) + (size_t{token} * spec.kv_heads + head) * dim * 2;
    return testing::ValuesOf(DType::kF16, raw.subspan(at, dim * 2));
  }
};

TEST_P(SparseTest, KeptTokensComeBackAndOthersAreZero) {
  for (const double keep : {0.0, 0.05, 0.3, 0.7, 1.0}) {
    const auto raw = testing::GaussianPage(Spec(), kTokens, 3);
    const auto page =
        Encode(absl::StrCat("key_norm|protect(first=1)|budget(keep=", keep, ")|", GetParam()), raw);
    ASSERT_TRUE(page.ok()) << page.status();
    EXPECT_FALSE(page->header.exact);
    const auto kept = KeptTokens(page->header, Bodies(*page));
    ASSERT_TRUE(kept.ok()) << kept.status();
    ASSERT_TRUE(kept->has_value());
    std::vector<uint8_t> back(raw.size());
    ASSERT_TRUE(DecodePage(page->header, page->segments, back).ok());
    size_t seen = 0;
    for (uint32_t l = 0; l < 3; ++l) {
      for (uint32_t t = 0; t < kTokens; ++t) {
        for (uint32_t h = 0; h < 2; ++h) {
          const bool is_kept = (*kept)->Kept(l, t, h);
          seen += is_kept;
          for (const Part part : {Part::kK, Part::kV}) {
            const auto x = VectorOf(raw, part, l, t, h), y = VectorOf(back, part, l, t, h);
            for (size_t c = 0; c < x.size(); ++c) {
              ASSERT_NEAR(y[c], is_kept ? x[c] : 0, is_kept ? 0.6 : 0)
                  << "layer " << l << " token " << t << " head " << h;
            }
          }
        }
      }
    }
    EXPECT_EQ(seen, std::max<size_t>(1, std::floor(keep * kTokens + 1e-9)) * 6) << keep;
  }
}

TEST_P(SparseTest, PartsOfAPageAreThoseOfTheWhole) {
  const auto raw = testing::GaussianPage(Spec(), kTokens, 4);
  const auto page = Encode("key_norm|budget(keep=0.4)|" + GetParam(), raw);
  ASSERT_TRUE(page.ok()) << page.status();
  std::vector<uint8_t> whole(raw.size());
  ASSERT_TRUE(DecodePage(page->header, page->segments, whole).ok());
  const size_t layer = LayerBytes(Spec(), kTokens);
  std::vector<uint8_t> last(layer);
  ASSERT_TRUE(DecodePage(page->header, Bodies(*page), PageRange{.layers = {2, 1}}, last).ok());
  EXPECT_TRUE(std::equal(last.begin(), last.end(), whole.begin() + 2 * layer));
  std::vector<uint8_t> cut(LayerBytes(Spec(), 7) * 3);
  const PageRange tokens{.layers = {0, 3}, .tokens = {11, 7}};
  ASSERT_TRUE(DecodePage(page->header, Bodies(*page), tokens, cut).ok());
  const size_t row = 2 * 20 * 2;
  EXPECT_TRUE(std::equal(cut.begin(), cut.begin() + 7 * row, whole.begin() + 11 * row));
}

TEST_P(SparseTest, DamageIsNamedAndNeverRead) {
  const auto raw = testing::GaussianPage(Spec(), kTokens, 5);
  const auto page = Encode("key_norm|budget(keep=0.3)|" + GetParam(), raw);
  ASSERT_TRUE(page.ok()) << page.status();
  std::vector<uint8_t> back(raw.size());
  for (size_t segment = 0; segment < page->segments.size(); ++segment) {
    const auto bytes = page->segments[segment].span();
    for (size_t cut = 0; cut < bytes.size(); cut += 1 + bytes.size() / 50) {
      EncodedPage damaged = *page;
      damaged.segments[segment] = SharedBytes::CopyOf(bytes.first(cut));
      EXPECT_EQ(DecodePage(damaged.header, damaged.segments, back).code(),
                absl::StatusCode::kDataLoss);
      // A header that agrees with the length, as a hostile one would.
      damaged.header.segments[segment].bytes = static_cast<uint32_t>(cut);
      EXPECT_EQ(DecodePage(damaged.header, damaged.segments, back).code(),
                absl::StatusCode::kDataLoss)
          << "segment " << segment << " cut to " << cut;
    }
    for (size_t at = 0; at < bytes.size(); at += 1 + bytes.size() / 200) {
      std::vector<uint8_t> flipped(bytes.begin(), bytes.end());
      flipped[at] ^= 0x55;
      EncodedPage damaged = *page;
      damaged.segments[segment] = SharedBytes::CopyOf(flipped);
      const absl::Status status = DecodePage(damaged.header, damaged.segments, back);
      EXPECT_TRUE(status.ok() || absl::IsDataLoss(status)) << status;
      const auto kept = KeptTokens(damaged.header, Bodies(damaged));
      EXPECT_TRUE(kept.ok() || absl::IsDataLoss(kept.status())) << kept.status();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, SparseTest,
                         ::testing::Values("raw", "int8", "kivi4", "turboquant4", "rotated8",
                                           "lossless"));

TEST_F(SparseTest, APolicyAloneKeepsTokensAsTheyAre) {
  const auto raw = testing::GaussianPage(Spec(), kTokens, 6);
  const auto alone = Encode("knorm(keep=0.5)", raw), with_raw = Encode("knorm(keep=0.5)|raw", raw);
  ASSERT_TRUE(alone.ok()) << alone.status();
  ASSERT_TRUE(with_raw.ok()) << with_raw.status();
  EXPECT_EQ(alone->segments[0].span().size(), with_raw->segments[0].span().size());
}

TEST_F(SparseTest, ColumnsReachThePolicy) {
  const auto raw = testing::GaussianPage(Spec(), kTokens, 7);
  EXPECT_EQ(Encode("h2o(keep=0.5)|int8", raw).status().code(),
            absl::StatusCode::kFailedPrecondition);
  AttentionColumns columns;
  columns["attn_sum"] = {.heads = 2, .queries = kTokens};
  columns["attn_sum"].scores.assign(3 * kTokens * 2, 0);
  for (uint32_t h = 0; h < 2; ++h) columns["attn_sum"].scores[(1 * kTokens + 9) * 2 + h] = 1;
  const auto page = Encode("column(name=attn_sum)|budget(count=1)|int8", raw, &columns);
  ASSERT_TRUE(page.ok()) << page.status();
  const auto kept = KeptTokens(page->header, Bodies(*page));
  EXPECT_TRUE((*kept)->Kept(1, 9, 0));
  EXPECT_TRUE((*kept)->Kept(0, 0, 1)) << "ties go to the first token";
}

TEST_F(SparseTest, NaNKeepsThePageExactly) {
  auto raw = testing::GaussianPage(Spec(), kTokens, 8);
  raw[0] = 0x00;
  raw[1] = 0x7e;  // NaN
  const auto page = Encode("knorm(keep=0.5)|int8", raw);
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_TRUE(page->header.fell_back);
  const auto kept = KeptTokens(page->header, Bodies(*page));
  EXPECT_FALSE(kept->has_value());
}

TEST_F(SparseTest, DensePagesKeepAll) {
  const auto raw = testing::GaussianPage(Spec(), kTokens, 9);
  const auto page = Encode("int8", raw);
  const auto kept = KeptTokens(page->header, Bodies(*page));
  ASSERT_TRUE(kept.ok());
  EXPECT_FALSE(kept->has_value());
}

TEST_F(SparseTest, WhatCannotBeSparseIsRefused) {
  EXPECT_THAT(Encode("knorm(keep=0.5)|hadamard", {}).status().ToString(), HasSubstr("must end"));
  EXPECT_THAT(Encode("knorm(keep=0.5)|int9", {}).status().ToString(), HasSubstr("int9"));
  KvSpec fp8 = Spec();
  fp8.dtype = DType::kF8E4M3;
  EXPECT_THAT(MakeCodec(*ParseRecipe("knorm(keep=0.5)"), fp8).status().ToString(),
              HasSubstr("FP8"));
}

TEST_F(SparseTest, GainsSumToWhatIsKept) {
  const auto raw = testing::GaussianPage(Spec(), kTokens, 10);
  const auto all = Encode("raw", raw), half = Encode("random-tokens(keep=0.5)|raw", raw);
  const auto sum = [](const EncodedPage& page) {
    double gain = 0;
    for (const SegmentInfo& s : page.header.segments) gain += s.gain;
    return gain;
  };
  // Gaussian vectors of much the same length: half of the tokens is half of the energy. 36 of 40
  // are protected, so the budget is theirs.
  EXPECT_NEAR(sum(*half) / sum(*all), 36.0 / 40, 0.03);
}

}  // namespace
}  // namespace kvstow
