// Pages in the store that are not what their names say: none is ever served.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/bytes.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "tests/service/transports/get_fixture.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

class LyingStoreTest : public GetTest {
 protected:
  // Puts a raw page of `spec`, whose header says `key` and has more flags, under the name "bad" of
  // "s".
  void PutAs(const KvSpec& spec, const std::string& key, uint8_t flags = 0) {
    const std::string raw = RandomPage(spec, 64, 1);
    const auto codec = MakeCodec(*ParseRecipe("raw"), spec);
    ASSERT_TRUE(codec.ok()) << codec.status();
    auto encoded = (*codec)->Encode({.raw = AsBytes(raw), .tokens = 64, .key = key});
    ASSERT_TRUE(encoded.ok()) << encoded.status();
    PageToStore page;
    page.name = {.space = 1, .key = "bad"};
    std::string header(AsString(encoded->header_bytes.span()));
    header.resize(header.size() - sizeof(uint64_t));
    header[6] = static_cast<char>(header[6] | flags);
    const uint64_t digest = Xxh3(AsBytes(header));
    header.append(reinterpret_cast<const char*>(&digest), sizeof(digest));
    page.header = SharedBytes::Take(std::move(header));
    page.raw_digest = encoded->header.raw_digest;
    page.raw_bytes = raw.size();
    page.tokens = 64;
    page.whole = true;
    for (const SegmentInfo& s : encoded->header.segments) {
      page.facts.push_back({.bytes = s.bytes, .gain = s.gain, .digest = s.digest});
    }
    page.bodies = encoded->segments;
    ASSERT_TRUE(server_->store().Put(std::move(page)).ok());
  }
  void ExpectCorruptThenGone(const char* says) {
    const auto got = client_->Get("s", {Ask("bad")});
    EXPECT_EQ(got.pages[0].reply.status(), v1::CORRUPT);
    EXPECT_THAT(got.pages[0].reply.message(), HasSubstr(says));
    EXPECT_EQ(got.pages[0].data, "");
    EXPECT_EQ(client_->Get("s", {Ask("bad")}).pages[0].reply.status(), v1::MISS);
    EXPECT_EQ(Metric("kvstow_corrupt_pages_total"), 1);
  }
};

TEST_F(LyingStoreTest, APageOfAnotherKeyIsNeverServed) {
  PutAs(SmallSpec(), "other");
  ExpectCorruptThenGone("belongs to another key");
}

TEST_F(LyingStoreTest, APageOfAnotherGeometryIsNeverServed) {
  KvSpec spec = SmallSpec();
  spec.kv_heads = 4;
  spec.layers = 2;
  PutAs(spec, "bad");
  ExpectCorruptThenGone("another geometry");
}

// No damage: nobody is to look for a bad disk. The page makes room for the same in this form.
TEST_F(LyingStoreTest, APageOfAnotherBuildIsAMissAndMakesRoom) {
  const PageIn in = {.key = "bad", .raw = RandomPage(SmallSpec(), 64, 1), .tokens = 64};
  for (const v1::Payload payload : {v1::RAW, v1::ENCODED}) {
    PutAs(SmallSpec(), "bad", 64);
    const auto got = client_->Get("s", {Ask("bad")}, 0, payload);
    EXPECT_EQ(got.pages[0].reply.status(), v1::MISS);
    EXPECT_THAT(got.pages[0].reply.message(), HasSubstr("a later version wrote it"));
    EXPECT_EQ(got.pages[0].data, "");
    EXPECT_EQ(client_->Put("s", {in}).pages.at(0).status(), v1::STORED);
    EXPECT_EQ(client_->Get("s", {Ask("bad")}).pages[0].data, in.raw);
    ASSERT_TRUE(server_->store().Delete({.space = 1, .key = "bad"}, /*force=*/true).ok());
  }
  EXPECT_EQ(Metric("kvstow_corrupt_pages_total"), 0);
}

TEST_F(LyingStoreTest, VerifyFindsItAndSaysSo) {
  PutAs(SmallSpec(), "other");
  const auto context = client_->Context();
  const auto call = client_->admin().Verify(context.get(), {});
  v1::VerifyProgress progress;
  while (call->Read(&progress)) {
  }
  EXPECT_TRUE(call->Finish().ok());
  EXPECT_TRUE(progress.done());
  EXPECT_EQ(progress.total_pages(), 21u);
  EXPECT_EQ(progress.pages(), 21u);
  EXPECT_EQ(progress.corrupt_pages(), 1u);
  EXPECT_GT(progress.bytes(), 10 * kPageBytes);
  EXPECT_EQ(server_->store().residency().Usage().pages, 20u);
}

}  // namespace
}  // namespace kvstow::testing
