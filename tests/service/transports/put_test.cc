// Put: what is stored, what is refused, and what a result says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/match.h"
#include "base/digest.h"
#include "tests/service/transports/put_fixture.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

std::string DigestOf(const std::string& raw) {
  const Digest128 digest = Xxh3_128(AsBytes(raw));
  return std::string(AsString(digest.bytes));
}

TEST_F(PutTest, StoresPagesWhateverTheChunks) {
  for (const size_t chunk : {size_t{1000}, size_t{65536}, size_t{131072}, size_t{1} << 20}) {
    const std::string key = "chunk" + std::to_string(chunk);
    const PageIn page = Page(key, chunk);
    const auto put = client_->Put("s", {page}, chunk);
    ASSERT_TRUE(put.status.ok()) << put.status.error_message();
    EXPECT_EQ(put.pages[0].status(), v1::STORED) << put.pages[0].message();
    EXPECT_EQ(put.pages[0].recipe(), "raw");
    EXPECT_EQ(put.pages[0].ack(), v1::MEMORY);
    EXPECT_GT(put.pages[0].stored_bytes(), page.raw.size());
    EXPECT_EQ(GetBytes(key), page.raw) << "chunks of " << chunk;
  }
  ExpectNothingLeft(4);
}

TEST_F(PutTest, ManyPagesAreUnderWayAtOnce) {
  std::vector<PageIn> pages;
  for (uint32_t i = 0; i < 40; ++i) pages.push_back(Page("p" + std::to_string(i), i, 1 + i));
  const auto put = client_->Put("s", pages);
  ASSERT_TRUE(put.status.ok()) << put.status.error_message();
  for (size_t i = 0; i < pages.size(); ++i) {
    EXPECT_EQ(put.pages[i].status(), v1::STORED) << put.pages[i].message();
    EXPECT_EQ(GetBytes(pages[i].key), pages[i].raw) << pages[i].key;
  }
}

TEST_F(PutTest, TheSameContentIsStoredAndEncodedOnce) {
  const PageIn page = Page("k", 1);
  PageIn with_digest = page;
  with_digest.digest = DigestOf(page.raw);
  ASSERT_EQ(client_->Put("s", {page}).pages[0].status(), v1::STORED);
  for (const PageIn& again : {page, with_digest}) {
    const auto put = client_->Put("s", {again, again});
    EXPECT_EQ(put.pages[0].status(), v1::ALREADY_THERE) << put.pages[0].message();
    EXPECT_EQ(put.pages[1].status(), v1::ALREADY_THERE) << put.pages[1].message();
  }
  EXPECT_EQ(Metric("kvstow_encode_seconds_count"), 1);
  ExpectNothingLeft(1);
}

TEST_F(PutTest, PagesOfAStreamGoLastOnesFirst) {
  std::vector<PageIn> pages;
  for (uint32_t i = 0; i < 6; ++i) {
    pages.push_back(Page("p" + std::to_string(i), i));
    pages.back().first_position = uint64_t{64} * i;
  }
  client_->Put("s", pages);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(GetBytes("p5"), pages[5].raw) << "used most";
  v1::EvictRequest evict;
  evict.set_tier("host");
  evict.set_to_bytes(pages[0].raw.size() * 9 / 2);
  v1::EvictResponse evicted;
  ASSERT_TRUE(client_->admin().Evict(client_->Context().get(), evict, &evicted).ok());
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(GetBytes(pages[i].key), i < 4 ? pages[i].raw : "") << pages[i].key;
  }
}

TEST_F(PutTest, OtherContentUnderTheKeyIsAConflictAndTheFirstIsKept) {
  const PageIn first = Page("k", 1);
  const PageIn other = Page("k", 2);
  ASSERT_EQ(client_->Put("s", {first}).pages[0].status(), v1::STORED);
  EXPECT_EQ(client_->Put("s", {other}).pages[0].status(), v1::CONFLICT);
  EXPECT_EQ(GetBytes("k"), first.raw);
}

TEST_F(PutTest, ClientsThatShareAPromptStoreItOnce) {
  constexpr int kClients = 8, kPages = 6;
  std::vector<PageIn> pages;
  for (int i = 0; i < kPages; ++i) pages.push_back(Page("p" + std::to_string(i), i));
  std::vector<Answer<v1::PutResult>> answers(kClients);
  std::vector<std::thread> threads;
  for (auto& answer : answers) {
    threads.emplace_back([&] { answer = WireClient(server_->address()).Put("s", pages); });
  }
  for (std::thread& t : threads) t.join();
  for (int i = 0; i < kPages; ++i) {
    int stored = 0;
    for (const auto& answer : answers) {
      ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
      stored += answer.pages[i].status() == v1::STORED;
      EXPECT_TRUE(answer.pages[i].status() == v1::STORED ||
                  answer.pages[i].status() == v1::ALREADY_THERE)
          << answer.pages[i].ShortDebugString();
    }
    EXPECT_EQ(stored, 1) << "page " << i;
  }
  ExpectNothingLeft(kPages);
}

TEST_F(PutTest, WhatIsWrongWithAPageIsItsResultAndTheStreamGoesOn) {
  PageIn long_key = Page(std::string(65, 'k'), 1), no_key = Page("", 1);
  PageIn no_tokens = Page("a", 1), many_tokens = Page("b", 1), size = Page("c", 1);
  PageIn digest = Page("d", 1), digest_size = Page("e", 1), ack = Page("f", 1), what = Page("g", 1);
  no_tokens.tokens = 0;
  many_tokens.tokens = 65;
  size.tokens = 63;
  digest.digest = DigestOf("something else");
  digest_size.digest = "short";
  ack.ack = v1::DURABLE;
  what.ack = static_cast<v1::Ack>(77);
  const struct {
    PageIn page;
    const char* says;
  } kCases[] = {
      {long_key, "key has 65 bytes"},
      {no_key, "key has 0 bytes"},
      {no_tokens, "tokens is 0"},
      {many_tokens, "tokens is 65: a page of this space has 1 to 64"},
      {size, "payload_bytes is 131072: 63 tokens of this space have 129024"},
      {digest, "it was damaged on its way"},
      {digest_size, "digest has 5 bytes"},
      {ack, "this server has no disk tier"},
      {what, "ack: 77 is no value"},
  };
  for (const auto& c : kCases) {
    const std::string good = "good after " + std::string(c.says).substr(0, 30);
    const auto put = client_->Put("s", {c.page, Page(good, 9)});
    EXPECT_TRUE(put.status.ok()) << put.status.error_message();
    EXPECT_EQ(put.pages[0].status(), v1::REFUSED) << c.says;
    EXPECT_THAT(put.pages[0].message(), HasSubstr(c.says));
    EXPECT_EQ(put.pages[1].status(), v1::STORED) << c.says << ": " << put.pages[1].message();
  }
  ExpectNothingLeft(std::size(kCases));
}

TEST_F(PutTest, NaNKeepsAPageExactInALossySpace) {
  ASSERT_TRUE(client_->OpenSpace("lossy", "int8").ok());
  PageIn page = Page("nan", 1);
  page.raw[1] = '\x7e';  // the first value is NaN now
  const auto put = client_->Put("lossy", {page});
  EXPECT_EQ(put.pages[0].status(), v1::STORED) << put.pages[0].message();
  EXPECT_TRUE(put.pages[0].fell_back());
  EXPECT_EQ(put.pages[0].recipe(), "raw");
  const auto got = client_->Get("lossy", {Ask("nan")});
  EXPECT_TRUE(got.pages[0].reply.exact());
  EXPECT_EQ(got.pages[0].data, page.raw);
}

TEST_F(PutTest, AcksSayWhatAPageSurvives) {
  StopServer();
  config_.disk_path = DiskPath();
  config_.disk_bytes = 64 << 20;
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
  for (const auto& [asked, given] : {std::pair{v1::ACK_UNSPECIFIED, v1::PROCESS},
                                     {v1::MEMORY, v1::MEMORY},
                                     {v1::PROCESS, v1::PROCESS},
                                     {v1::DURABLE, v1::DURABLE}}) {
    PageIn page = Page("k" + std::to_string(asked), asked);
    page.ack = asked;
    const auto put = client_->Put("s", {page});
    EXPECT_EQ(put.pages[0].status(), v1::STORED) << put.pages[0].message();
    EXPECT_EQ(put.pages[0].ack(), given);
  }
}

}  // namespace
}  // namespace kvstow::testing
