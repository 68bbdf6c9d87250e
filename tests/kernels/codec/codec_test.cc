// The presets on a page of a real model.
#include "kernels/codec/codec.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/digest.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "tests/kernels/fixture.h"

namespace kvstow {
namespace {

struct RealCase {
  const char* recipe;
  uint32_t levels;  // of those that the recipe has
  double ratio;     // raw bytes over stored bytes, header and all: at least
  double error;     // relative to the page's energy: at most

  friend void PrintTo(const RealCase& c, std::ostream* out) {
    *out << c.recipe << ", " << c.levels << " levels";
  }
};

class RealPage : public ::testing::TestWithParam<RealCase> {};

TEST_P(RealPage, IsAsSmallAndAsCloseAsPromised) {
  const KvSpec spec = testing::FixtureSpec();
  const std::vector<uint8_t> raw = testing::FixturePage();
  ASSERT_EQ(raw.size(), PageBytes(spec, testing::kFixtureTokens))
      << "the fixture is not as expected";
  const auto codec = MakeCodec(*ParseRecipe(GetParam().recipe), spec);
  ASSERT_TRUE(codec.ok()) << codec.status();
  const auto page = (*codec)->Encode(
      {.raw = raw, .tokens = testing::kFixtureTokens, .key = std::string(32, 'k')});
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_FALSE(page->header.fell_back);

  const size_t kept = SegmentsForLevels(page->header, GetParam().levels);
  uint64_t stored = page->header_bytes.size();
  for (size_t i = 0; i < kept; ++i) stored += page->segments[i].size();
  EXPECT_GE(static_cast<double>(raw.size()) / static_cast<double>(stored), GetParam().ratio);

  std::vector<uint8_t> back(raw.size());
  ASSERT_TRUE(DecodePage(page->header, std::span(page->segments).first(kept), back).ok());
  EXPECT_LE(testing::RelativeError(spec.dtype, raw, back), GetParam().error);
}

TEST(CodecTest, ADigestThatTheCallerHasGivesTheSamePage) {
  const std::vector<uint8_t> raw = testing::FixturePage();
  const auto codec = MakeCodec(*ParseRecipe("int8"), testing::FixtureSpec());
  ASSERT_TRUE(codec.ok()) << codec.status();
  PageToEncode page{.raw = raw, .tokens = testing::kFixtureTokens, .key = "k"};
  const auto computed = (*codec)->Encode(page);
  page.raw_digest = Xxh3_128(raw);
  const auto given = (*codec)->Encode(page);
  ASSERT_TRUE(computed.ok() && given.ok());
  EXPECT_EQ(given->header, computed->header);
  EXPECT_EQ(given->header.raw_digest, Xxh3_128(raw));
}

// A base that leaves more than all of the energy gains nothing, and what follows no more than it
// takes off the whole.
TEST(CodecTest, NoPageGainsMoreThanItHas) {
  const KvSpec spec = testing::SpecOf(DType::kF16, 2, 2, 64, 64, 64);
  const std::vector<uint8_t> raw = testing::GaussianPage(spec, 64);
  for (const char* recipe :
       {"affine(bits=1)|residual|affine(bits=2)", "signs(rows=1)|residual|affine(bits=2)"}) {
    SCOPED_TRACE(recipe);
    const auto codec = MakeCodec(*ParseRecipe(recipe), spec).value();
    const EncodedPage page = codec->Encode({.raw = raw, .tokens = 64}).value();
    double left = 64.0 * 2 * spec.layers;
    const double all = left;
    size_t at = 0;
    for (uint32_t level = 1; level <= codec->levels(); ++level) {
      for (; at < SegmentsForLevels(page.header, level); ++at)
        left -= page.header.segments[at].gain;
      std::vector<uint8_t> back(raw.size());
      ASSERT_TRUE(DecodePage(page.header, std::span(page.segments).first(at), back).ok());
      const double error = testing::RelativeError(spec.dtype, raw, back);
      EXPECT_NEAR(left / all, std::min(error, 1.0), 0.05 * error) << "level " << level;
    }
  }
}

std::vector<uint8_t> Join(const std::vector<SharedBytes>& parts) {
  std::vector<uint8_t> out;
  for (const SharedBytes& p : parts) out.insert(out.end(), p.data(), p.data() + p.size());
  return out;
}

TEST(CodecTest, AnExactPageIsThereWithoutDecodingAndWithoutACopy) {
  const KvSpec spec = testing::FixtureSpec();
  const auto raw = std::make_shared<const std::vector<uint8_t>>(testing::FixturePage());
  const auto codec = MakeCodec(*ParseRecipe("raw"), spec);
  ASSERT_TRUE(codec.ok()) << codec.status();
  const auto page = (*codec)->Encode(
      {.raw = *raw, .tokens = testing::kFixtureTokens, .key = "k", .raw_owner = raw});
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(page->segments[0].data(), raw->data()) << "referenced, since it has an owner";
  std::vector<std::optional<SharedBytes>> bodies(page->segments.begin(), page->segments.end());
  const auto whole = PageInPlace(page->header, bodies, {});
  ASSERT_TRUE(whole.ok() && whole->has_value()) << whole.status();
  EXPECT_EQ(Join(**whole), *raw);
  EXPECT_EQ((*whole)->front().data(), raw->data());

  const size_t layer = LayerBytes(spec, testing::kFixtureTokens);
  const auto some = PageInPlace(page->header, bodies, {7, 9});
  ASSERT_TRUE(some.ok() && some->has_value()) << some.status();
  EXPECT_EQ(Join(**some),
            std::vector<uint8_t>(raw->begin() + 7 * layer, raw->begin() + 16 * layer));

  bodies[0] = bodies[0]->Slice(0, bodies[0]->size() - 1);
  EXPECT_TRUE(absl::IsDataLoss(PageInPlace(page->header, bodies, {}).status()));
  bodies[0].reset();
  EXPECT_TRUE(absl::IsDataLoss(PageInPlace(page->header, bodies, {}).status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(PageInPlace(page->header, bodies, {0, spec.layers + 1}).status()));
}

TEST(CodecTest, APageOfAnotherRecipeMustBeDecoded) {
  const auto codec = MakeCodec(*ParseRecipe("lossless"), testing::FixtureSpec());
  ASSERT_TRUE(codec.ok()) << codec.status();
  const auto page = (*codec)->Encode(
      {.raw = testing::FixturePage(), .tokens = testing::kFixtureTokens, .key = "k"});
  ASSERT_TRUE(page.ok()) << page.status();
  const std::vector<std::optional<SharedBytes>> bodies(page->segments.begin(),
                                                       page->segments.end());
  const auto parts = PageInPlace(page->header, bodies, {});
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_FALSE(parts->has_value());
}

INSTANTIATE_TEST_SUITE_P(
    Presets, RealPage,
    ::testing::Values(RealCase{"raw", 1, 0.9999, 0}, RealCase{"int8", 1, 1.88, 5.8e-5},
                      RealCase{"fp8", 1, 1.93, 5e-4}, RealCase{"kivi4", 1, 3.19, 2.7e-3},
                      RealCase{"int4", 1, 3.55, 0.0172}, RealCase{"q4_0", 1, 3.55, 0.0180},
                      RealCase{"nvfp4", 1, 3.55, 0.0088}, RealCase{"mxfp4", 1, 3.75, 0.0189},
                      RealCase{"kivi2", 1, 5.3, 0.07}, RealCase{"quarot", 1, 3.55, 0.0076},
                      RealCase{"sageattention", 1, 1.87, 1.7e-5},
                      RealCase{"turboquant3", 1, 4.9, 0.032},
                      RealCase{"turboquant4", 1, 3.76, 0.0088},
                      RealCase{"rotated8", 3, 1.93, 3.4e-5}, RealCase{"rotated8", 2, 3.7, 8.6e-3},
                      RealCase{"rotated8", 1, 7.0, 0.13}));

}  // namespace
}  // namespace kvstow
