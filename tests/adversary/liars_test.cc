// Workers that lie about what they put: encoded pages under the raw digest of other content.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/bytes.h"
#include "base/digest.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/page/encoded_payload.h"
#include "kernels/recipe/recipe.h"
#include "tests/service/encoded_pages.h"
#include "tests/service/server_fixture.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

PageIn PageWith(uint32_t seed) {
  return {.key = "k", .raw = RandomPage(SmallSpec(), 64, seed), .tokens = 64};
}

class LiarsTest : public ServerTest {
 protected:
  LiarsTest() {
    config_.disk_path = DiskPath();
    config_.disk_bytes = 64 << 20;
    StartServer();
  }
  void Restart() {
    StopServer();
    StartServer();
  }
  // Puts what `page` is encoded to, as if it were `claimed`.
  v1::PutResult PutAs(const std::string& space, const PageIn& page, const PageIn& claimed) {
    v1::OpenSpaceResponse opened;
    EXPECT_TRUE(client_->FindSpace(space, &opened).ok());
    const auto codec = MakeCodec(*ParseRecipe(opened.put_pipeline()), SmallSpec());
    EncodedPage encoded =
        *(*codec)->Encode({.raw = AsBytes(page.raw), .tokens = page.tokens, .key = page.key});
    encoded.header.raw_digest = Xxh3_128(AsBytes(claimed.raw));
    encoded.header_bytes = SharedBytes::Take(SerializePageHeader(encoded.header));
    PageIn sent = page;
    sent.raw = PayloadOf(encoded);
    return client_->Put(space, {sent}, 64 << 10, v1::ENCODED).pages.at(0);
  }
  v1::PageStatus PutRaw(const std::string& space, PageIn page, bool with_digest = true) {
    if (with_digest) page.digest = std::string(AsString(Xxh3_128(AsBytes(page.raw)).bytes));
    return client_->Put(space, {page}).pages.at(0).status();
  }
};

TEST_F(LiarsTest, NothingIsExactThatWasNotChecked) {
  const PageIn p = PageWith(1), q = PageWith(2);
  for (const std::string recipe : {"lossless", "raw"}) {
    SCOPED_TRACE(recipe);
    ASSERT_TRUE(client_->OpenSpace(recipe, recipe, nullptr, v1::EXACT).ok());
    const v1::PutResult lie = PutAs(recipe, p, q);
    EXPECT_EQ(lie.status(), v1::REFUSED);
    EXPECT_THAT(lie.message(), HasSubstr("raw digest"));
    EXPECT_EQ(PutRaw(recipe, q), v1::STORED);
    v1::GetPage layer = Ask("k");
    layer.set_first_layer(1);
    layer.set_layer_count(1);
    const PageOut got = client_->Get(recipe, {layer}).pages.at(0);
    ASSERT_EQ(got.reply.status(), v1::HIT);
    EXPECT_TRUE(got.reply.exact());
    EXPECT_EQ(got.data, q.raw.substr(q.raw.size() / 4, q.raw.size() / 4));
    EXPECT_EQ(PutAs(recipe, q, q).status(), v1::ALREADY_THERE) << "the truth is taken";
  }
}

TEST_F(LiarsTest, AnHonestPageIsNeverTakenForALie) {
  const PageIn p = PageWith(1), q = PageWith(2);
  for (const std::string recipe : {"int8", "hot=int8,cold=rotated8"}) {
    SCOPED_TRACE(recipe);
    const std::string space = recipe == "int8" ? "one" : "two";
    ASSERT_TRUE(client_->OpenSpace(space, recipe).ok());
    ASSERT_EQ(PutAs(space, p, q).status(), v1::STORED) << "it cannot be told from the truth";
    const double before = Metric("kvstow_store_conflicts_total");
    EXPECT_EQ(PutRaw(space, q), v1::CONFLICT);
    EXPECT_EQ(PutRaw(space, q, /*with_digest=*/false), v1::CONFLICT);
    EXPECT_EQ(PutAs(space, q, q).status(), v1::CONFLICT);
    EXPECT_EQ(PutRaw(space, p), v1::CONFLICT);
    EXPECT_EQ(Metric("kvstow_store_conflicts_total"), before + 4);
    EXPECT_EQ(PutAs(space, p, q).status(), v1::ALREADY_THERE) << "the very same lie";
    Restart();
    EXPECT_EQ(PutRaw(space, q), v1::CONFLICT) << "a restart makes it no truer";
  }
}

TEST_F(LiarsTest, TheTruthIsThereWhoeverCodedIt) {
  const PageIn p = PageWith(1);
  ASSERT_TRUE(client_->OpenSpace("s", "hot=int8,cold=rotated8").ok());
  ASSERT_EQ(PutAs("s", p, p).status(), v1::STORED);
  EXPECT_EQ(PutRaw("s", p), v1::ALREADY_THERE);
  Restart();
  EXPECT_EQ(PutRaw("s", p), v1::ALREADY_THERE);
  ASSERT_TRUE(client_->OpenSpace("t", "int8").ok());
  ASSERT_EQ(PutRaw("t", p), v1::STORED);
  EXPECT_EQ(PutAs("t", p, p).status(), v1::ALREADY_THERE);
}

}  // namespace
}  // namespace kvstow::testing
