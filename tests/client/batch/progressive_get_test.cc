// Gets whose base level comes first, against a server that changes between it and the rest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "tests/client/batch/layers.h"
#include "tests/client/fake_server.h"

namespace kvstow {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

class ProgressiveCallTest : public testing::Test {
 protected:
  void SetUp() override {
    client_ = Client::Connect({.address = server_->address()});
    ASSERT_TRUE(client_->OpenSpace({.name = "s", .spec = SmallSpec(), .recipe = "raw"}).ok());
    ASSERT_THAT(OutcomesOf(client_->Put("s", prompt_.Puts()).get()), Each(PageOutcome::kStored));
    server_->faults().streams = 0;
  }
  ProgressiveGot Get(const std::function<void()>& at_base = [] {}) {
    return GetProgressive(*client_, "s", fetch_.gets, at_base);
  }

  std::unique_ptr<FakeServer> server_ = StartFakeServer("127.0.0.1:0");
  std::unique_ptr<Client> client_;
  const Prompt prompt_{SmallSpec(), 64 * 5 + 17, 1};
  Fetch fetch_{prompt_};
};

TEST_F(ProgressiveCallTest, AllPagesHaveTheirBaseBeforeAnyIsAskedForTheRest) {
  const ProgressiveGot got = Get();
  for (size_t p = 0; p < got.results.size(); ++p) {
    EXPECT_EQ(got.base[p].outcome, PageOutcome::kHit);
    EXPECT_EQ(got.base[p].levels, 1u);
    EXPECT_EQ(got.results[p].outcome, PageOutcome::kHit);
    EXPECT_EQ(got.results[p].levels, 2u);
    EXPECT_TRUE(got.results[p].exact);
  }
  EXPECT_EQ(fetch_.buffers, prompt_.pages);
  EXPECT_EQ(server_->faults().streams, 2);
}

TEST_F(ProgressiveCallTest, WhatIsWholeOrMissingIsNotAskedForAgain) {
  for (PageGet& get : fetch_.gets) get.max_levels = 1;
  fetch_.gets[2].key = "none";
  const ProgressiveGot got = Get();
  ASSERT_EQ(got.results.size(), got.base.size());
  EXPECT_EQ(OutcomesOf(got.results), OutcomesOf(got.base));
  EXPECT_EQ(got.results[2].outcome, PageOutcome::kMiss);
  EXPECT_EQ(got.results[5].levels, 1u);
  EXPECT_EQ(server_->faults().streams, 1);
  fetch_.gets.clear();
  EXPECT_TRUE(Get().results.empty());
}

// A base that falls short of what was asked for is for the server to judge again.
TEST_F(ProgressiveCallTest, BoundsAreOfTheWhole) {
  for (PageGet& get : fetch_.gets) get.max_levels = 1;
  fetch_.gets[0].max_error = 0.2;  // a base level has 0.25
  EXPECT_THAT(OutcomesOf(Get().base), Each(PageOutcome::kHit));
  EXPECT_EQ(server_->faults().streams, 2);
  fetch_.gets[0].max_error = 0.3;
  Get();
  EXPECT_EQ(server_->faults().streams, 3);
}

TEST_F(ProgressiveCallTest, APageThatWasReplacedInBetweenIsAMiss) {
  const Prompt other(SmallSpec(), 64 * 5 + 17, 2);
  std::vector<PagePut> puts = other.Puts();
  for (size_t p = 0; p < puts.size(); ++p) puts[p].key = prompt_.keys[p];
  const auto writer = Client::Connect({.address = server_->address()});
  const ProgressiveGot got = Get([&] {
    EXPECT_TRUE(writer->Delete("s", prompt_.keys).ok());
    EXPECT_THAT(OutcomesOf(writer->Put("s", puts).get()), Each(PageOutcome::kStored));
  });
  EXPECT_THAT(OutcomesOf(got.base), Each(PageOutcome::kHit));
  EXPECT_THAT(OutcomesOf(got.results), Each(PageOutcome::kMiss));
  EXPECT_THAT(got.results[0].message, HasSubstr("replaced"));
  EXPECT_EQ(got.results[0].bytes, 0u);
}

TEST_F(ProgressiveCallTest, BrokenStreamsGoOnAndADeadServerIsAMiss) {
  for (const int replies : {1, 3, 7, 9}) {
    server_->faults().break_after_gets = replies;
    Fetch fetch(prompt_);
    EXPECT_THAT(OutcomesOf(GetProgressive(*client_, "s", fetch.gets).results),
                Each(PageOutcome::kHit));
    EXPECT_EQ(fetch.buffers, prompt_.pages);
  }
  const ProgressiveGot got = Get([&] { server_->Kill(); });
  EXPECT_THAT(OutcomesOf(got.base), Each(PageOutcome::kHit));
  EXPECT_THAT(OutcomesOf(got.results), Each(PageOutcome::kUnavailable));
}

TEST_F(ProgressiveCallTest, ADestroyedClientEndsIt) {
  client_ = Client::Connect(
      {.address = server_->address(), .timeout = std::chrono::milliseconds(3'600'000)});
  std::promise<void> base;
  int done = 0;
  client_->GetProgressiveAsync(
      "s", 0, fetch_.gets,
      [&](std::span<const GetResult>) {
        server_->faults().hold_from_layer = 0;
        base.set_value();
      },
      [&](const std::vector<GetResult>& results) {
        EXPECT_THAT(OutcomesOf(results), Each(PageOutcome::kUnavailable));
        ++done;
      });
  base.get_future().wait();
  client_.reset();
  EXPECT_EQ(done, 1);
}

}  // namespace
}  // namespace kvstow
