// Pages that come encoded: the same bytes as the server makes, and nothing that it would not make.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/codec/presets.h"
#include "kernels/page/encoded_payload.h"
#include "kernels/recipe/recipe.h"
#include "tests/service/encoded_pages.h"
#include "tests/service/transports/put_fixture.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

class EncodedPutTest : public PutTest {
 protected:
  EncodedPage Encode(const PageIn& page, const std::string& recipe) {
    const auto codec = MakeCodec(*ParseRecipe(recipe), SmallSpec());
    EXPECT_TRUE(codec.ok()) << codec.status();
    auto encoded = (*codec)->Encode({.raw = AsBytes(page.raw),
                                     .tokens = page.tokens,
                                     .first_position = page.first_position,
                                     .key = page.key});
    EXPECT_TRUE(encoded.ok()) << encoded.status();
    return *std::move(encoded);
  }
  // The result of putting `payload` as what `page` is encoded to.
  v1::PutResult PutEncoded(const std::string& space, PageIn page, const std::string& payload) {
    page.raw = payload;
    const auto answer = client_->Put(space, {page}, 50'000, v1::ENCODED);
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    return answer.pages.at(0);
  }
  // The same with header fields that were changed, under a digest that is right.
  v1::PutResult PutChanged(const PageIn& page, EncodedPage encoded) {
    encoded.header_bytes = SharedBytes::Take(SerializePageHeader(encoded.header));
    return PutEncoded("lossy", page, PayloadOf(encoded));
  }
};

TEST_F(EncodedPutTest, PagesOfEveryRecipeAreTheBytesThatTheServerMakes) {
  int served = 0;
  for (const Preset& preset : CodecPresets()) {
    const std::string recipe(preset.name), space = absl::StrCat("s-", recipe);
    v1::OpenSpaceResponse opened;
    if (!client_->OpenSpace(space, recipe, &opened).ok()) continue;  // needs what is not here
    SCOPED_TRACE(recipe);
    ++served;
    const PageIn page = Page("k", 1), other = Page("o", 2, 17);
    EXPECT_EQ(PutEncoded(space, page, PayloadOf(Encode(page, opened.put_pipeline()))).status(),
              v1::STORED);
    const v1::PutResult again = client_->Put(space, {page}).pages.at(0);
    EXPECT_EQ(again.status(), v1::ALREADY_THERE) << again.message();
    EXPECT_EQ(client_->Put(space, {other}).pages.at(0).status(), v1::STORED);
    const auto ours = PayloadOf(Encode(other, opened.put_pipeline()));
    const auto got = client_->Get(space, {Ask("o")}, 0, v1::ENCODED);
    EXPECT_EQ(got.pages.at(0).data, ours);
    const auto both = client_->Get(space, {Ask("k", 1)}, 0, v1::RAW);
    EXPECT_EQ(both.pages.at(0).reply.status(), v1::HIT) << both.pages.at(0).reply.message();
  }
  EXPECT_GE(served, 30);
}

TEST_F(EncodedPutTest, AHotFormBecomesColdAndNaNStaysExact) {
  ASSERT_TRUE(client_->OpenSpace("two", "hot=int8,cold=kvstow").ok());
  const PageIn page = Page("k", 1);
  EXPECT_EQ(PutEncoded("two", page, PayloadOf(Encode(page, "int8"))).status(), v1::STORED);
  PageIn nan = Page("nan", 2);
  nan.raw[1] = 0x7F, nan.raw[0] = 1;
  const v1::PutResult result = PutEncoded("two", nan, PayloadOf(Encode(nan, "int8")));
  EXPECT_EQ(result.status(), v1::STORED) << result.message();
  EXPECT_TRUE(result.fell_back());
  EXPECT_EQ(client_->Get("two", {Ask("nan")}).pages.at(0).data, nan.raw);
}

TEST_F(EncodedPutTest, KeysWithLargeMeansHaveTheRecipeThatTheServerChooses) {
  v1::OpenSpaceResponse opened;
  ASSERT_TRUE(client_->OpenSpace("eight", "int8", &opened).ok());
  PageIn page = Page("k", 1, 16);
  const KvSpec spec = SmallSpec();
  ASSERT_EQ(spec.dtype, DType::kF16);
  // Large in every eighth channel of K of the first layer.
  for (size_t i = 0; i < size_t{16} * spec.kv_heads * spec.head_dim_k; i += 8) {
    page.raw[2 * i + 1] = 0x58;  // 128 and more
  }
  const EncodedPage ours = Encode(page, opened.put_pipeline());
  EXPECT_THAT(ours.header.pipeline, HasSubstr("k=channel"));
  const v1::PutResult result = PutEncoded("eight", page, PayloadOf(ours));
  EXPECT_EQ(result.status(), v1::STORED) << result.message();
  EXPECT_EQ(result.recipe(), ours.header.pipeline);
  EXPECT_EQ(client_->Put("eight", {page}).pages.at(0).status(), v1::ALREADY_THERE);
  PageIn raw = page;
  raw.key = "r";
  const v1::PutResult theirs = client_->Put("eight", {raw}).pages.at(0);
  EXPECT_EQ(theirs.recipe(), ours.header.pipeline);
  EXPECT_EQ(client_->Get("eight", {Ask("r")}, 0, v1::ENCODED).pages.at(0).data,
            PayloadOf(Encode(raw, opened.put_pipeline())));
}

TEST_F(EncodedPutTest, WhatTheSpaceWouldNotMakeIsRefusedByName) {
  ASSERT_TRUE(client_->OpenSpace("lossy", "kvstow").ok());
  const PageIn page = Page("k", 1);
  const EncodedPage good = Encode(page, "kvstow");
  const auto changed = [&](auto change) {
    EncodedPage bad = good;
    change(bad.header);
    return PutChanged(page, bad);
  };
  const struct {
    v1::PutResult result;
    const char* says;
  } kCases[] = {
      {PutEncoded("lossy", page, PayloadOf(Encode(page, "int8"))), "recipe"},
      {PutEncoded("lossy", page, PayloadOf(Encode(page, "raw"))), "recipe"},
      {PutEncoded("lossy", page, PayloadOf(Encode(Page("other", 1), "kvstow"))), "another key"},
      {PutEncoded("lossy", page, PayloadOf(Encode(Page("k", 1, 63), "kvstow"))), "tokens 63"},
      {changed([](PageHeader& h) { h.first_position = 5; }), "first_position 5"},
      {changed([](PageHeader& h) { h.rope.theta += 1; }), "geometry"},
      {changed([](PageHeader& h) { h.exact = true; }), "exact"},
      {changed([](PageHeader& h) { h.fell_back = true; }), "recipe"},
      {changed([](PageHeader& h) { h.calibration[0] = 1; }), "calibration 01"},
      {changed([](PageHeader& h) { h.segments[0].gain = 1e9f; }), "gain"},
      {changed([](PageHeader& h) { h.segments[0].gain = -1e9f; }), "gain"},
      {changed([](PageHeader& h) { h.segments[0].gain = std::numeric_limits<float>::quiet_NaN(); }),
       "gain"},
      {changed([](PageHeader& h) { h.segments.pop_back(); }), "its list of segments"},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(c.result.status(), v1::REFUSED) << c.says;
    EXPECT_THAT(c.result.message(), HasSubstr(c.says));
  }
  EncodedPage cut = good;
  cut.segments.pop_back();
  EXPECT_THAT(PutEncoded("lossy", page, PayloadOf(cut)).message(), HasSubstr("send all of them"));
  PageIn with_digest = page;
  with_digest.digest = std::string(16, 'x');
  EXPECT_THAT(PutEncoded("lossy", with_digest, PayloadOf(good)).message(), HasSubstr("digest"));
  ExpectNothingLeft(0);
}

TEST_F(EncodedPutTest, ColumnsFollowTheEncodedPage) {
  const KvSpec spec = SmallSpec();
  PageIn page = Page("k", 1);
  const std::string payload = PayloadOf(Encode(page, "raw"));
  page.columns.resize(1);
  page.columns[0].set_name("sum");
  page.columns[0].set_queries(1);
  page.scores = std::string(size_t{2} * spec.layers * page.tokens * spec.kv_heads, '\0');
  page.columns[0].set_bytes(page.scores.size());
  const v1::PutResult result = PutEncoded("s", page, payload);
  EXPECT_EQ(result.status(), v1::STORED) << result.message();
  EXPECT_EQ(GetBytes("k"), Page("k", 1).raw);
}

TEST_F(EncodedPutTest, AnExactPageMustBeWhatItsDigestSays) {
  PageIn page = Page("k", 1);
  EncodedPage encoded = Encode(page, "raw");
  encoded.header.raw_digest.bytes[3] ^= 1;
  encoded.header_bytes = SharedBytes::Take(SerializePageHeader(encoded.header));
  const v1::PutResult result = PutEncoded("s", page, PayloadOf(encoded));
  EXPECT_EQ(result.status(), v1::REFUSED);
  EXPECT_THAT(result.message(), HasSubstr("raw digest"));
}

// Cut at every byte of the front, and with a bit flipped in places all over.
TEST_F(EncodedPutTest, DamageIsRefusedWhereverItIs) {
  ASSERT_TRUE(client_->OpenSpace("lossy", "kvstow").ok());
  const PageIn page = Page("k", 1);
  const std::string good = PayloadOf(Encode(page, "kvstow"));
  for (size_t size = 1; size < good.size(); size += size < 200 ? 7 : good.size() / 50) {
    EXPECT_EQ(PutEncoded("lossy", page, good.substr(0, size)).status(), v1::REFUSED) << size;
  }
  for (size_t place = 0; place < good.size(); place += place < 200 ? 5 : good.size() / 50) {
    std::string bad = good;
    bad[place] ^= 1 << place % 8;
    EXPECT_EQ(PutEncoded("lossy", page, bad).status(), v1::REFUSED) << place;
  }
  EXPECT_EQ(PutEncoded("lossy", page, good + "x").status(), v1::REFUSED);
  EXPECT_EQ(PutEncoded("lossy", page, std::string(1 << 20, 'x')).status(), v1::REFUSED)
      << "more than an encoded page takes";
  ExpectNothingLeft(0);
  EXPECT_EQ(PutEncoded("lossy", page, good).status(), v1::STORED);
}

TEST_F(EncodedPutTest, ASpaceThatSeeksItsStepTakesRawPagesOnly) {
  ASSERT_TRUE(client_->OpenSpace("seeks", "kvstow(ratio=8)").ok());
  const auto answer = client_->Put("seeks", {Page("k", 1)}, 50'000, v1::ENCODED);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(answer.status.error_message(), HasSubstr("send its pages RAW"));
}

}  // namespace
}  // namespace kvstow::testing
