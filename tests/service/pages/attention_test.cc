// Reports of attention: what is taken, how it is pooled, and what it is worth.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "kernels/page/half.h"
#include "proto/wire/spec.h"
#include "service/pages/attention_pool.h"
#include "tests/service/server_fixture.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

constexpr Digest128 kContent{{1}}, kOther{{2}};

PooledColumn Column(float score, uint64_t queries, size_t scores = 8, double even = 1) {
  PooledColumn out{.column = {.heads = 1, .queries = queries, .scores = {}}, .layers = 2};
  out.column.scores.assign(scores, score);
  out.even = even;
  return out;
}

TEST(AttentionPoolTest, ReportsOfAllSessionsAddUp) {
  AttentionPool pool(1 << 20);
  const PageName page{.space = 1, .key = "p"};
  ASSERT_TRUE(pool.Add(page, kContent, "attn_sum", Column(1, 10)).ok());
  ASSERT_TRUE(pool.Add(page, kContent, "attn_sum", Column(2, 5)).ok());
  ASSERT_TRUE(pool.Add(page, kContent, "attn_window", Column(7, 32)).ok());
  const PooledColumns pooled = pool.Find(page, kContent);
  ASSERT_EQ(pooled.size(), 2u);
  EXPECT_EQ(pooled.at("attn_sum").column.queries, 15u);
  EXPECT_EQ(pooled.at("attn_sum").column.scores, std::vector<float>(8, 3));
  EXPECT_EQ(pooled.at("attn_sum").even, 2);
  EXPECT_EQ(ColumnsOf(pooled).at("attn_window").scores, std::vector<float>(8, 7));
  ASSERT_TRUE(pool.Add(page, kContent, "attn_sum", Column(0, UINT64_MAX)).ok());
  EXPECT_EQ(pool.Find(page, kContent).at("attn_sum").column.queries, UINT64_MAX);
}

TEST(AttentionPoolTest, OtherContentUnderTheNameBeginsAnew) {
  AttentionPool pool(1 << 20);
  const PageName page{.space = 1, .key = "p"};
  ASSERT_TRUE(pool.Add(page, kContent, "attn_sum", Column(1, 10)).ok());
  EXPECT_TRUE(pool.Find(page, kOther).empty());
  ASSERT_TRUE(pool.Add(page, kOther, "attn_sum", Column(2, 5)).ok());
  EXPECT_TRUE(pool.Find(page, kContent).empty());
  EXPECT_EQ(pool.Find(page, kOther).at("attn_sum").column.queries, 5u);
  EXPECT_TRUE(pool.Find({.space = 2, .key = "p"}, kOther).empty());
  EXPECT_EQ(pool.pages(), 1u);
}

TEST(AttentionPoolTest, ItsMemoryIsBoundedAndWhatWasReportedLongestAgoGoes) {
  AttentionPool pool(10'000);
  const auto name = [](int i) { return PageName{.space = 1, .key = std::to_string(i)}; };
  ASSERT_TRUE(pool.Add(name(0), kContent, "attn_sum", Column(1, 1, 500)).ok());
  for (int i = 1; i < 100; ++i) {
    ASSERT_TRUE(pool.Add(name(i), kContent, "attn_sum", Column(1, 1, 500)).ok());
    ASSERT_TRUE(pool.Add(name(0), kContent, "attn_sum", Column(1, 1, 500)).ok());
    EXPECT_LE(pool.bytes(), 10'000u);
  }
  EXPECT_EQ(pool.pages(), 4u);
  EXPECT_EQ(pool.Find(name(0), kContent).at("attn_sum").column.queries, 100u);
  EXPECT_FALSE(pool.Find(name(99), kContent).empty());
  EXPECT_TRUE(pool.Find(name(1), kContent).empty());
  EXPECT_EQ(pool.Add(name(200), kContent, "attn_sum", Column(1, 1, 2500)).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool.pages(), 4u);
  for (int c = 0; c < 8; ++c) {
    ASSERT_TRUE(pool.Add(name(300), kContent, "c" + std::to_string(c), Column(1, 1)).ok());
  }
  EXPECT_EQ(pool.Add(name(300), kContent, "c8", Column(1, 1)).code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(AttentionPoolTest, WorthIsAttentionOverAnEvenShareAndNeverBelowOne) {
  PooledColumns pooled;
  EXPECT_EQ(WorthOf(pooled, {0, 2}), 1);
  // Two layers of four tokens: of 10 queries, layer 0 gave .8 of their attention, layer 1 .1.
  PooledColumn column{.column = {.heads = 1, .queries = 10, .scores = {2, 2, 2, 2, 1, 0, 0, 0}},
                      .layers = 2,
                      .even = 2};
  pooled["attn_sum"] = column;
  EXPECT_FLOAT_EQ(WorthOf(pooled, {0, 1}), 4);
  EXPECT_FLOAT_EQ(WorthOf(pooled, {1, 1}), 1);
  EXPECT_FLOAT_EQ(WorthOf(pooled, {0, 2}), 2.25);
  column.even = 1e-9;
  pooled["attn_window"] = column;
  EXPECT_FLOAT_EQ(WorthOf(pooled, {1, 1}), kMaxWorth);
  pooled.clear();
  pooled["kvzap"] = column;
  EXPECT_FLOAT_EQ(WorthOf(pooled, {0, 2}), 1) << "no probabilities";
}

class ReportTest : public ServerTest {
 protected:
  void SetUp() override { StartServer(); }

  // Every token of layer `strong` got `score`, the others nothing.
  static std::string Scores(uint32_t strong, float score, uint32_t tokens = 64) {
    const KvSpec spec = SmallSpec();
    std::string out;
    for (size_t i = 0; i < size_t{spec.layers} * tokens * spec.kv_heads; ++i) {
      const bool here = i / (tokens * spec.kv_heads) == strong;
      const uint16_t half = FloatToHalf(here ? score : 0);
      out.append(reinterpret_cast<const char*>(&half), sizeof(half));
    }
    return out;
  }
  v1::PageAttention Report(const std::string& key, const std::string& scores) {
    v1::PageAttention out;
    out.set_key(key);
    out.set_column("attn_sum");
    out.set_queries(100);
    out.set_context(1000);
    out.set_scores(scores);
    return out;
  }
  std::vector<v1::AttentionResult> Send(const std::string& space,
                                        const std::vector<v1::PageAttention>& reports) {
    v1::ReportAttentionRequest request;
    NameSpace(space, request);
    request.mutable_pages()->Add(reports.begin(), reports.end());
    v1::ReportAttentionResponse response;
    const grpc::Status status =
        client_->kv().ReportAttention(client_->Context().get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return {response.results().begin(), response.results().end()};
  }
  std::vector<float> Gains(const std::string& key) {
    const auto facts = server_->store().residency().Find({.space = 1, .key = key});
    EXPECT_TRUE(facts.ok()) << facts.status();
    std::vector<float> out;
    for (const SegmentFacts& s : facts->segments) out.push_back(s.gain);
    return out;
  }
  PageIn Page(const std::string& key, uint32_t seed) {
    return {.key = key, .raw = RandomPage(SmallSpec(), 64, seed), .tokens = 64};
  }
};

TEST_F(ReportTest, AReportRaisesTheGainsOfItsLayersAndChangesNoByte) {
  ASSERT_TRUE(client_->OpenSpace("s", "run(layers=1)|affine(bits=8,group=64)").ok());
  ASSERT_EQ(client_->Put("s", {Page("p", 1)}).pages[0].status(), v1::STORED);
  const std::vector<float> before = Gains("p");
  ASSERT_EQ(before.size(), 4u);
  const PageOut page = client_->Get("s", {Ask("p")}).pages[0];

  // 64 tokens that got .25 each of 100 queries are .16 of their attention; even is 64 of 1000.
  const auto results = Send("s", {Report("p", Scores(2, 0.25))});
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].status(), v1::HIT) << results[0].message();
  std::vector<float> after = Gains("p");
  for (size_t i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(after[i], before[i] * (i == 2 ? 2.5f : 1)) << i;
  // Another session that looked elsewhere: pooled, not replaced.
  Send("s", {Report("p", Scores(0, 0.5))});
  after = Gains("p");
  EXPECT_FLOAT_EQ(after[0], before[0] * 2.5f);
  EXPECT_FLOAT_EQ(after[2], before[2] * 1.25f);

  const PageOut again = client_->Get("s", {Ask("p")}).pages[0];
  EXPECT_EQ(again.data, page.data);
  EXPECT_EQ(again.reply.estimated_error(), page.reply.estimated_error());
  EXPECT_TRUE(server_->store().residency().CheckInvariants().ok());
  EXPECT_EQ(Metric("kvstow_attention_reports_total{result=\"hit\"}"), 2);
}

TEST_F(ReportTest, WhatCannotBeTakenIsSaidPageByPage) {
  ASSERT_TRUE(client_->OpenSpace("s", "int8").ok());
  ASSERT_EQ(client_->Put("s", {Page("p", 1)}).pages[0].status(), v1::STORED);
  const std::vector<float> before = Gains("p");
  const v1::PageAttention good = Report("p", Scores(0, 0));
  v1::PageAttention gone = good, size = good, nan = good, inf = good, name = good, none = good;
  gone.set_key("gone");
  size.set_scores(std::string(1022, '\0'));
  const uint16_t kNan = 0x7e01, kInf = 0x7c00;
  std::memcpy(nan.mutable_scores()->data() + 100, &kNan, 2);
  std::memcpy(inf.mutable_scores()->data(), &kInf, 2);
  name.set_column("Sum!");
  none.set_queries(0);
  const auto results = Send("s", {gone, size, nan, inf, name, none, good});
  ASSERT_EQ(results.size(), 7u);
  const struct {
    v1::PageStatus status;
    const char* says;
  } kWant[] = {{v1::MISS, "no such page"},
               {v1::REFUSED, "column 'attn_sum' has 1022 bytes"},
               {v1::REFUSED, "holds NaN or Inf"},
               {v1::REFUSED, "holds NaN or Inf"},
               {v1::REFUSED, "the name of a column"},
               {v1::REFUSED, "sums over no queries"},
               {v1::HIT, ""}};
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(results[i].status(), kWant[i].status) << i;
    EXPECT_THAT(results[i].message(), HasSubstr(kWant[i].says));
  }
  EXPECT_EQ(Gains("p"), before) << "no attention is worth no less than none known";
  EXPECT_EQ(Metric("kvstow_attention_reports_total{result=\"refused\"}"), 5);

  v1::ReportAttentionRequest nowhere;
  NameSpace("nowhere", nowhere);
  v1::ReportAttentionResponse response;
  EXPECT_EQ(
      client_->kv().ReportAttention(client_->Context().get(), nowhere, &response).error_code(),
      grpc::StatusCode::NOT_FOUND);
}

TEST_F(ReportTest, ColumnsOfAPutAreItsFirstReport) {
  ASSERT_TRUE(client_->OpenSpace("s", "run(layers=1)|affine(bits=8,group=64)").ok());
  ASSERT_EQ(client_->Put("s", {Page("plain", 1)}).pages[0].status(), v1::STORED);
  PageIn page = Page("p", 1);
  page.scores = Scores(3, 0.25);
  page.columns.emplace_back();
  page.columns[0].set_name("attn_sum");
  page.columns[0].set_queries(100);
  page.columns[0].set_context(1000);
  page.columns[0].set_bytes(page.scores.size());
  const auto put = client_->Put("s", {page});
  ASSERT_EQ(put.pages[0].status(), v1::STORED) << put.pages[0].message();
  const std::vector<float> plain = Gains("plain"), told = Gains("p");
  EXPECT_FLOAT_EQ(told[0], plain[0]);
  EXPECT_FLOAT_EQ(told[3], plain[3] * 2.5f);
}

TEST_F(ReportTest, AColdFormIsMadeOfWhatWasReportedMeanwhile) {
  v1::OpenSpaceRequest request;
  request.set_space("s");
  request.set_recipe("hot=raw,cold=column(name=attn_sum)|budget(keep=0.25)|raw");
  request.set_fidelity(v1::SPARSE);
  request.set_is_private(true);
  ToProto(SmallSpec(), *request.mutable_spec());
  v1::OpenSpaceResponse opened;
  ASSERT_TRUE(client_->kv().OpenSpace(client_->Context().get(), request, &opened).ok());
  for (const char* key : {"told", "untold"}) {
    ASSERT_EQ(client_->Put("s", {Page(key, 1)}).pages[0].status(), v1::STORED);
  }
  // The last 16 tokens got all of it.
  std::string scores;
  for (size_t i = 0; i < size_t{4} * 64 * 2; ++i) {
    const uint16_t half = FloatToHalf(i / 2 % 64 >= 48 ? 1 : 0);
    scores.append(reinterpret_cast<const char*>(&half), sizeof(half));
  }
  ASSERT_EQ(Send("s", {Report("told", scores)})[0].status(), v1::HIT);
  v1::EvictRequest evict;
  evict.set_tier("host");
  evict.set_to_bytes(180'000);
  v1::EvictResponse evicted;
  ASSERT_TRUE(client_->admin().Evict(client_->Context().get(), evict, &evicted).ok());
  const PageOut told = client_->Get("s", {Ask("told")}).pages[0];
  ASSERT_EQ(told.reply.status(), v1::HIT) << told.reply.message();
  EXPECT_DOUBLE_EQ(told.reply.kept_share(), 0.25);
  const std::string raw = Page("told", 1).raw;
  const size_t vector = 2 * 64 * 2, first = 48 * vector;
  EXPECT_EQ(told.data.substr(first, 16 * vector), raw.substr(first, 16 * vector));
  EXPECT_EQ(told.data.substr(0, first), std::string(first, '\0'));
  // Nobody reported the other: what its cold form needs is not known, so it stays whole.
  const PageOut untold = client_->Get("s", {Ask("untold")}).pages[0];
  EXPECT_EQ(untold.data, raw);
}

}  // namespace
}  // namespace kvstow::testing
