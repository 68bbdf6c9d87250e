// Spaces whose pages lack tokens: what is dropped is said, layer by layer and head by head.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/bytes.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/methods/kept_tokens.h"
#include "kernels/page/half.h"
#include "proto/wire/spec.h"
#include "tests/service/server_fixture.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kTokens = 64;
constexpr char kSnap[] =
    "column(name=attn_window)|protect(first=2,last=4)|budget(keep=0.25)|affine(bits=8,group=64)";

// F16 scores [layers, tokens, kv_heads]; other tokens are high in each layer and head.
std::string Scores(const KvSpec& spec, uint32_t tokens) {
  std::string out;
  for (uint32_t l = 0; l < spec.layers; ++l) {
    for (uint32_t t = 0; t < tokens; ++t) {
      for (uint32_t h = 0; h < spec.kv_heads; ++h) {
        const uint16_t half = FloatToHalf(static_cast<float>((t * 37 + l * 11 + h * 5) % 64));
        out.append(reinterpret_cast<const char*>(&half), sizeof(half));
      }
    }
  }
  return out;
}

AttentionColumns ColumnsOf(const std::string& scores, const KvSpec& spec) {
  AttentionColumn column{.heads = spec.kv_heads, .queries = 32, .scores = {}};
  for (size_t i = 0; i < scores.size(); i += 2) {
    uint16_t half = 0;
    std::memcpy(&half, scores.data() + i, 2);
    column.scores.push_back(HalfToFloat(half));
  }
  return {{"attn_window", column}};
}

class SparseTest : public ServerTest {
 protected:
  void SetUp() override { StartServer(); }

  grpc::Status Open(const std::string& name, const std::string& recipe, bool is_private = true,
                    v1::OpenSpaceResponse* out = nullptr) {
    v1::OpenSpaceRequest request;
    request.set_space(name);
    request.set_recipe(recipe);
    request.set_fidelity(v1::SPARSE);
    request.set_is_private(is_private);
    ToProto(SmallSpec(), *request.mutable_spec());
    v1::OpenSpaceResponse response;
    return client_->kv().OpenSpace(client_->Context().get(), request,
                                   out != nullptr ? out : &response);
  }
  // A page with the column attn_window.
  PageIn Page(const std::string& key, uint32_t seed) {
    PageIn page{.key = key,
                .raw = RandomPage(SmallSpec(), kTokens, seed),
                .tokens = kTokens,
                .first_position = 128};
    const std::string scores = Scores(SmallSpec(), kTokens);
    v1::PageColumn column;
    column.set_name("attn_window");
    column.set_queries(32);
    column.set_bytes(scores.size());
    page.columns = {column};
    page.scores = scores;
    return page;
  }
  // The codec alone makes this of it.
  struct Local {
    std::string raw;
    Selection kept;
  };
  Local Expected(const PageIn& page, const std::string& recipe) {
    const KvSpec spec = SmallSpec();
    const AttentionColumns columns = ColumnsOf(Scores(spec, kTokens), spec);
    const auto codec = MakeCodec(*ParseRecipe(recipe), spec);
    EXPECT_TRUE(codec.ok()) << codec.status();
    const auto encoded = (*codec)->Encode({.raw = AsBytes(page.raw),
                                           .tokens = kTokens,
                                           .first_position = page.first_position,
                                           .columns = &columns});
    EXPECT_TRUE(encoded.ok()) << encoded.status();
    Local out{std::string(page.raw.size(), '\0'), {}};
    EXPECT_TRUE(DecodePage(encoded->header, encoded->segments,
                           {reinterpret_cast<uint8_t*>(out.raw.data()), out.raw.size()})
                    .ok());
    const std::vector<std::optional<SharedBytes>> all(encoded->segments.begin(),
                                                      encoded->segments.end());
    out.kept = KeptTokens(encoded->header, all).value().value();
    return out;
  }
};

TEST_F(SparseTest, AReplyHasTheBytesAndSaysWhichTokensTheyAre) {
  v1::OpenSpaceResponse opened;
  ASSERT_TRUE(Open("s", kSnap, true, &opened).ok());
  EXPECT_EQ(opened.fidelity(), v1::SPARSE);
  EXPECT_TRUE(opened.is_private());
  const PageIn page = Page("p", 1);
  for (const size_t chunk : {size_t{1000}, size_t{1} << 20}) {
    const auto put = client_->Put("s", {page}, chunk);
    ASSERT_TRUE(put.status.ok()) << put.status.error_message();
    ASSERT_EQ(put.pages[0].status(), chunk == 1000 ? v1::STORED : v1::ALREADY_THERE)
        << put.pages[0].message();
  }
  EXPECT_EQ(Metric("kvstow_put_raw_bytes_total"), page.raw.size()) << "columns are not of the page";
  const Local local = Expected(page, kSnap);
  const PageOut got = client_->Get("s", {Ask("p")}).pages[0];
  ASSERT_EQ(got.reply.status(), v1::HIT) << got.reply.message();
  EXPECT_EQ(got.reply.payload_bytes(), got.data.size());
  const size_t kept_bytes = got.reply.kept().bytes();
  ASSERT_EQ(kept_bytes, KeptBytes(local.kept));
  EXPECT_EQ(got.data.substr(0, got.data.size() - kept_bytes), local.raw);
  const auto kept = ReadKept(AsBytes(got.data).last(kept_bytes), 4, kTokens, 2);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->keep, local.kept.keep);
  EXPECT_EQ(got.reply.kept().layers(), 4u);
  EXPECT_EQ(got.reply.kept().kv_heads(), 2u);
  EXPECT_DOUBLE_EQ(got.reply.kept_share(), 0.25);
  EXPECT_GT(got.reply.estimated_error(), 0.5) << "what was dropped is lost whole";
  EXPECT_LT(got.reply.estimated_error(), 0.9);
  EXPECT_FALSE(got.reply.exact());
  EXPECT_EQ(got.reply.recipe(), kSnap);
}

TEST_F(SparseTest, LayersAndTokensAreThatPartOfTheKept) {
  ASSERT_TRUE(Open("s", kSnap).ok());
  const PageIn page = Page("p", 1);
  ASSERT_EQ(client_->Put("s", {page}).pages[0].status(), v1::STORED);
  const Local local = Expected(page, kSnap);
  v1::GetPage ask = Ask("p");
  ask.set_first_layer(1);
  ask.set_layer_count(2);
  ask.set_first_token(10);
  ask.set_token_count(33);
  const PageOut got = client_->Get("s", {ask}).pages[0];
  ASSERT_EQ(got.reply.status(), v1::HIT) << got.reply.message();
  EXPECT_EQ(got.reply.tokens(), 33u);
  EXPECT_EQ(got.reply.first_position(), 138u);
  const size_t kept_bytes = got.reply.kept().bytes();
  const auto kept = ReadKept(AsBytes(got.data).last(kept_bytes), 2, 33, 2);
  ASSERT_TRUE(kept.ok()) << kept.status();
  for (uint32_t l = 0; l < 2; ++l) {
    for (uint32_t t = 0; t < 33; ++t) {
      for (uint32_t h = 0; h < 2; ++h) {
        ASSERT_EQ(kept->Kept(l, t, h), local.kept.Kept(l + 1, t + 10, h)) << l << t << h;
      }
    }
  }
  EXPECT_DOUBLE_EQ(got.reply.kept_share(), kept->Share());
  const KvSpec spec = SmallSpec();
  std::string part(2 * LayerBytes(spec, 33), '\0');
  CopyTokens(spec, 2, kTokens, AsBytes(local.raw).subspan(LayerBytes(spec, kTokens)), {10, 33},
             {reinterpret_cast<uint8_t*>(part.data()), part.size()});
  EXPECT_EQ(got.data.substr(0, got.data.size() - kept_bytes), part);
}

TEST_F(SparseTest, BudgetsMayDifferByLayerAndHead) {
  const std::string recipe =
      "column(name=attn_window)|budget(keep=0.1,profile=pyramid,beta=20)|affine(bits=8,group=64)";
  ASSERT_TRUE(Open("s", recipe).ok());
  const PageIn page = Page("p", 2);
  ASSERT_EQ(client_->Put("s", {page}).pages[0].status(), v1::STORED);
  const Local local = Expected(page, recipe);
  const PageOut got = client_->Get("s", {Ask("p")}).pages[0];
  const auto kept = ReadKept(AsBytes(got.data).last(got.reply.kept().bytes()), 4, kTokens, 2);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->keep, local.kept.keep);
  EXPECT_GT(KeptOf(*kept, 0, 0).size(), KeptOf(*kept, 3, 0).size());
}

TEST_F(SparseTest, AnEncodedPageSaysItInItsSegments) {
  ASSERT_TRUE(Open("s", kSnap).ok());
  const PageIn page = Page("p", 1);
  ASSERT_EQ(client_->Put("s", {page}).pages[0].status(), v1::STORED);
  const PageOut got = client_->Get("s", {Ask("p")}, 0, v1::ENCODED).pages[0];
  ASSERT_EQ(got.reply.status(), v1::HIT) << got.reply.message();
  EXPECT_EQ(got.reply.kept().bytes(), 0u);
  EXPECT_EQ(got.reply.kept().layers(), 4u);
  EXPECT_DOUBLE_EQ(got.reply.kept_share(), 0.25);
}

TEST_F(SparseTest, APageThatWasKeptExactlyLacksNothing) {
  ASSERT_TRUE(Open("s", "knorm(keep=0.25)|int8", false).ok());
  PageIn page{.key = "p", .raw = RandomPage(SmallSpec(), kTokens, 1), .tokens = kTokens};
  page.raw[1] = '\x7c';  // Inf
  page.raw[0] = '\0';
  const auto put = client_->Put("s", {page});
  ASSERT_EQ(put.pages[0].status(), v1::STORED) << put.pages[0].message();
  EXPECT_TRUE(put.pages[0].fell_back());
  const PageOut got = client_->Get("s", {Ask("p")}).pages[0];
  EXPECT_EQ(got.data, page.raw);
  EXPECT_EQ(got.reply.kept_share(), 1);
  EXPECT_FALSE(got.reply.has_kept());
  EXPECT_TRUE(got.reply.exact());
}

TEST_F(SparseTest, AColdFormMayDropWhatTheHotOneKept) {
  ASSERT_TRUE(Open("s", "hot=raw,cold=knorm(keep=0.25)|int8", false).ok());
  PageIn page{.key = "p", .raw = RandomPage(SmallSpec(), kTokens, 1), .tokens = kTokens};
  ASSERT_EQ(client_->Put("s", {page}).pages[0].status(), v1::STORED);
  EXPECT_EQ(client_->Get("s", {Ask("p")}).pages[0].data, page.raw);
  v1::EvictRequest request;
  request.set_tier("host");
  request.set_to_bytes(page.raw.size() / 2);
  v1::EvictResponse evicted;
  ASSERT_TRUE(client_->admin().Evict(client_->Context().get(), request, &evicted).ok());
  const PageOut got = client_->Get("s", {Ask("p")}).pages[0];
  ASSERT_EQ(got.reply.status(), v1::HIT) << got.reply.message();
  EXPECT_LT(got.reply.kept_share(), 1);
  EXPECT_GT(got.reply.kept().bytes(), 0u);
}

TEST_F(SparseTest, AWrongColumnHasThePageRefusedByName) {
  ASSERT_TRUE(Open("s", kSnap).ok());
  const PageIn good = Page("p", 1);
  int cases = 0;
  const auto refused = [&](const PageIn& page, const char* says) {
    const auto put = client_->Put("s", {page, Page("good" + std::to_string(++cases), 3)});
    ASSERT_TRUE(put.status.ok()) << put.status.error_message();
    EXPECT_EQ(put.pages[0].status(), v1::REFUSED) << says;
    EXPECT_THAT(put.pages[0].message(), HasSubstr(says));
    EXPECT_EQ(put.pages[1].status(), v1::STORED) << "the stream goes on: " << says;
  };
  PageIn page = good;
  page.columns[0].set_bytes(100);
  page.scores.resize(100);
  refused(page, "column 'attn_window' has 100 bytes: 4 layers, 64 tokens and 2 KV heads have 1024");
  page = good;
  page.columns[0].set_bytes(std::numeric_limits<uint64_t>::max());
  refused(page, "column 'attn_window' has 18446744073709551615 bytes");
  page = good;
  page.scores.resize(1000);
  refused(page, "payload_bytes is 132072: 64 tokens of this space have 131072 and their columns");
  page = good;
  page.columns.clear();
  page.scores.clear();
  refused(page, "nobody reported the column 'attn_window'");
  page = good;
  page.columns[0].set_name("Attention window");
  refused(page, "the name of a column has 1 to 32 lower-case letters");
  page = good;
  page.columns[0].set_queries(0);
  refused(page, "column 'attn_window' sums over no queries");
  page = good;
  page.columns.push_back(page.columns[0]);
  page.scores += page.scores;
  refused(page, "column 'attn_window' came twice");
  page = good;
  page.columns.resize(9, page.columns[0]);
  refused(page, "columns: 9 are too many");
  for (const uint16_t half : {uint16_t{0x7e00}, uint16_t{0x7c00}, uint16_t{0xfc00}}) {
    page = good;
    std::memcpy(page.scores.data() + 512, &half, sizeof(half));
    refused(page, "column 'attn_window' holds NaN or Inf");
  }
}

TEST_F(SparseTest, ASharedSpaceDropsNothingByWhatOneQueryLookedAt) {
  const grpc::Status status = Open("s", kSnap, false);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("open the space as private"));
  // Columns may come all the same; here they are of no use, and do no harm.
  ASSERT_TRUE(client_->OpenSpace("d", "int8").ok());
  const PageIn page = Page("p", 1);
  ASSERT_EQ(client_->Put("d", {page}).pages[0].status(), v1::STORED);
  EXPECT_EQ(client_->Get("d", {Ask("p")}).pages[0].data.size(), page.raw.size());
}

TEST_F(SparseTest, WhatFallsShortIsACountedMiss) {
  ASSERT_TRUE(Open("s", "knorm(keep=0.5)|rotated8", false).ok());
  ASSERT_TRUE(client_->OpenSpace("lossy", "rotated8").ok());
  PageIn page{.key = "p", .raw = RandomPage(SmallSpec(), kTokens, 1), .tokens = kTokens};
  for (const char* space : {"s", "lossy"}) {
    ASSERT_EQ(client_->Put(space, {page}).pages[0].status(), v1::STORED);
  }
  const v1::PageReply whole = client_->Get("lossy", {Ask("p")}).pages[0].reply;
  const auto miss = [&](const char* space, const v1::GetPage& ask, const char* says) {
    const PageOut got = client_->Get(space, {ask}).pages[0];
    EXPECT_EQ(got.reply.status(), v1::MISS);
    EXPECT_THAT(got.reply.message(), HasSubstr(says));
    EXPECT_EQ(got.data, "");
  };
  v1::GetPage ask = Ask("p");
  ask.set_max_error(whole.estimated_error());
  EXPECT_EQ(client_->Get("lossy", {ask}).pages[0].reply.status(), v1::HIT);
  miss("s", ask, "its estimated error is 0.");
  ask.set_max_error(0);
  miss("lossy", ask, "at most 0 was asked for");
  ask.set_max_error(std::numeric_limits<double>::quiet_NaN());
  miss("lossy", ask, "at most nan");
  ask.set_max_error(1);
  ask.set_max_levels(1);
  EXPECT_EQ(client_->Get("s", {ask}).pages[0].reply.status(), v1::HIT);
  ask.set_max_error(whole.estimated_error());
  miss("lossy", ask, "its estimated error is");
  ask.clear_max_error();
  ask.set_min_levels(whole.levels());
  miss("lossy", ask, "it has 1 levels, at least");
  EXPECT_EQ(Metric("kvstow_short_of_fidelity_total{of=\"error\"}"), 4);
  EXPECT_EQ(Metric("kvstow_short_of_fidelity_total{of=\"levels\"}"), 1);
  EXPECT_EQ(Metric("kvstow_get_pages_total{result=\"miss\",tier=\"\"}"), 5);
}

}  // namespace
}  // namespace kvstow::testing
