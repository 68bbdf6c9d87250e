#include "kernels/page/page_digests.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/codec/codec.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "tests/kernels/fixture.h"

namespace kvstow {
namespace {

using Bytes = std::vector<uint8_t>;

PageDigests InPieces(std::span<const uint8_t> page, size_t run_bytes, size_t piece) {
  PageDigester digester(run_bytes);
  for (; !page.empty(); page = page.subspan(std::min(piece, page.size()))) {
    digester.Update(page.first(std::min(piece, page.size())));
  }
  return digester.Finish();
}

TEST(PageDigestsTest, AreThoseOfTheWholePageAndOfEachRun) {
  Bytes page(5'000);
  for (size_t i = 0; i < page.size(); ++i) page[i] = static_cast<uint8_t>(i * 7 + i / 251);
  for (const size_t run : {1'000u, 1'024u, 2'500u, 4'999u, 5'000u, 9'000u}) {
    std::vector<uint64_t> runs;
    for (size_t at = 0; at < page.size(); at += run) {
      runs.push_back(Xxh3(std::span(page).subspan(at, std::min(run, page.size() - at))));
    }
    for (const size_t piece : {1u, 64u, 999u, 1'000u, 1'001u, 4'096u, 5'000u}) {
      const PageDigests digests = InPieces(page, run, piece);
      EXPECT_EQ(digests.page, Xxh3_128(page)) << "runs of " << run << ", pieces of " << piece;
      EXPECT_EQ(digests.runs, runs) << "runs of " << run << ", pieces of " << piece;
    }
  }
}

TEST(PageDigestsTest, ACodecThatCodesHasNoUseForRuns) {
  const Bytes page = testing::FixturePage();
  const auto codec = MakeCodec(*ParseRecipe("int8"), testing::FixtureSpec());
  ASSERT_TRUE(codec.ok()) << codec.status();
  EXPECT_EQ(ExactRunBytes(**codec, testing::kFixtureTokens), 0);
  const PageDigests digests = InPieces(page, 0, 1'000);
  EXPECT_EQ(digests.page, Xxh3_128(page));
  EXPECT_TRUE(digests.runs.empty());
}

// The digests of pages that are kept as they came, as a whole or in runs.
TEST(PageDigestsTest, GiveThePageThatACodecMakesWithoutThem) {
  const Bytes page = testing::FixturePage();
  const auto owner = std::make_shared<int>();
  for (const char* recipe : {"raw", "run(layers=7)|raw", "run(layers=1)|raw"}) {
    const auto codec = MakeCodec(*ParseRecipe(recipe), testing::FixtureSpec());
    ASSERT_TRUE(codec.ok()) << codec.status();
    const size_t run = ExactRunBytes(**codec, testing::kFixtureTokens);
    ASSERT_GT(run, 0) << recipe;
    PageDigests digests = InPieces(page, run, 100'000);
    PageToEncode to_encode{
        .raw = page, .tokens = testing::kFixtureTokens, .key = "k", .raw_owner = owner};
    const auto without = (*codec)->Encode(to_encode);
    to_encode.raw_digest = digests.page;
    to_encode.run_digests = digests.runs;
    const auto with = (*codec)->Encode(to_encode);
    ASSERT_TRUE(without.ok() && with.ok()) << recipe;
    EXPECT_EQ(with->header, without->header) << recipe;
    EXPECT_TRUE(VerifySegments(with->header, with->segments).ok()) << recipe;
    // They are used, not made again.
    for (uint64_t& digest : digests.runs) digest ^= 1;
    const auto wrong = (*codec)->Encode(to_encode);
    ASSERT_TRUE(wrong.ok());
    EXPECT_FALSE(VerifySegments(wrong->header, wrong->segments).ok()) << recipe;
  }
}

}  // namespace
}  // namespace kvstow
