// The events that subscribers hear: from the start, when they come late, after they missed some.
#include "service/events/event_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/service/events/events.h"

namespace kvstow {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::KeyOf;
using testing::Router;

constexpr char kTopic[] = "kv@node@m1";

class EventLogTest : public ::testing::Test {
 protected:
  EventLogTest() { Make({}); }
  void Make(EventLog::Options options) {
    options.name = "node";
    log_.emplace(options, [](SpaceId space) -> std::optional<EventLog::Label> {
      if (space == 9) return std::nullopt;
      return EventLog::Label{.model = absl::StrCat("m", space),
                             .adapter = space == 2 ? "lora" : ""};
    });
  }
  void Came(uint64_t hash, SpaceId space = 1, uint32_t tokens = 64) {
    queue_.PageCame(space, KeyOf(hash), tokens);
  }
  void Went(uint64_t hash, SpaceId space = 1) { queue_.PageWent(space, KeyOf(hash)); }
  // As the publisher does; the router hears it, and numbers must go up.
  void Publish() {
    log_->Add(queue_.Take(), 1.0, [&](const EventFrame& frame) {
      numbers_.push_back(frame.sequence);
      router_.Take(*frame.topic, *frame.payload);
    });
  }
  // A router that heard nothing, or what `router` heard, asks for all from `first` on.
  std::vector<uint64_t> Replay(uint64_t first, Router& router) {
    EventLog::Cursor replay = log_->Replay(first, 2.0);
    std::vector<uint64_t> numbers;
    for (auto frame = log_->Next(replay); frame.has_value(); frame = log_->Next(replay)) {
      numbers.push_back(frame->sequence);
      router.Take(*frame->topic, *frame->payload);
    }
    return numbers;
  }
  std::vector<uint64_t> Range(uint64_t first, uint64_t end) {
    std::vector<uint64_t> out;
    for (; first < end; ++first) out.push_back(first);
    return out;
  }

  EventQueue queue_{1000};
  std::optional<EventLog> log_;
  Router router_;
  std::vector<uint64_t> numbers_;
};

TEST_F(EventLogTest, PagesComeAndGo) {
  queue_.Restart(1);
  Came(1);
  Publish();
  EXPECT_EQ(router_.cleared, 1u) << "what was before the start is void";
  EXPECT_THAT(router_.Of(kTopic), ElementsAre(1));
  Came(2);
  Came(3);
  Went(1);
  Came(1);
  Went(2);
  Publish();
  EXPECT_THAT(router_.Of(kTopic), ElementsAre(1, 3));
  EXPECT_EQ(numbers_, Range(0, 3)) << "AllBlocksCleared, two batches of the model";
  EXPECT_EQ(log_->counters().stored, 4u);
  EXPECT_EQ(log_->counters().removed, 2u);
}

TEST_F(EventLogTest, ChangesOfOneKindShareAnEvent) {
  queue_.Restart(0);
  for (uint64_t hash = 1; hash <= 3; ++hash) Came(hash);
  Came(4, 1, 16);
  Went(1);
  Went(2);
  Publish();
  ASSERT_EQ(router_.last.size(), 3u);
  EXPECT_EQ(router_.last[0]["block_hashes"].size(), 3u);
  EXPECT_EQ(router_.last[0]["block_size"], 64);
  EXPECT_TRUE(router_.last[0]["parent_block_hash"].is_null());
  EXPECT_EQ(router_.last[1]["block_size"], 16);
  EXPECT_EQ(router_.last[2]["type"], "BlockRemoved");
}

TEST_F(EventLogTest, ASpaceHasItsModelAndItsAdapter) {
  queue_.Restart(0);
  Came(1, 2);
  Publish();
  EXPECT_EQ(router_.last[0]["lora_name"], "lora");
  EXPECT_THAT(router_.Of("kv@node@m2"), ElementsAre(1));
}

TEST_F(EventLogTest, ASpaceThatIsNotPublishedIsSilent) {
  queue_.Restart(0);
  Came(1, 9);
  Went(1, 9);
  Publish();
  EXPECT_EQ(router_.events, 1u) << "AllBlocksCleared";
}

TEST_F(EventLogTest, WhoMissedBatchesThatAreKeptGetsThem) {
  queue_.Restart(0);
  Publish();
  for (uint64_t hash = 1; hash <= 5; ++hash) {
    Came(hash);
    Publish();
  }
  Router late;
  EXPECT_EQ(Replay(0, late), Range(0, 6));
  EXPECT_EQ(late.stored, router_.stored);
  Router part;
  EXPECT_EQ(Replay(4, part), Range(4, 6));
  EXPECT_THAT(part.Of(kTopic), ElementsAre(4, 5));
  EXPECT_THAT(Replay(6, part), IsEmpty()) << "nothing came yet";
  EXPECT_THAT(Replay(UINT64_MAX, part), IsEmpty());
}

TEST_F(EventLogTest, WhoComesTooLateGetsAllPagesAndANumberForEachBatch) {
  Make({.max_batches = 4});
  queue_.Restart(0);
  for (uint64_t hash = 1; hash <= 20; ++hash) {
    Came(hash);
    if (hash > 3) Went(hash - 3);
    Publish();
  }
  Router late;
  EXPECT_EQ(Replay(0, late), Range(0, log_->next_sequence()));
  EXPECT_EQ(late.stored, router_.stored);
  EXPECT_EQ(late.cleared, 1u);
  // One that knows something already: that is void.
  Router returned;
  returned.stored[kTopic][999] = 1;
  EXPECT_EQ(Replay(5, returned), Range(5, log_->next_sequence()));
  EXPECT_EQ(returned.stored, router_.stored);
}

TEST_F(EventLogTest, WhatComesDuringAReplayIsInIt) {
  Make({.max_batches = 4});
  queue_.Restart(0);
  for (uint64_t hash = 1; hash <= 10; ++hash) {
    Came(hash);
    Publish();
  }
  EventLog::Cursor replay = log_->Replay(0, 2.0);
  Router late;
  const auto next = [&] {
    const auto frame = log_->Next(replay);
    if (frame.has_value()) late.Take(*frame->topic, *frame->payload);
    return frame.has_value();
  };
  ASSERT_TRUE(next());
  Went(1);
  Publish();
  while (next()) {
  }
  EXPECT_EQ(late.stored, router_.stored);
}

TEST_F(EventLogTest, AReplayThatFellTooFarBehindEnds) {
  Make({.max_batches = 2});
  queue_.Restart(0);
  Publish();
  EventLog::Cursor replay = log_->Replay(0, 2.0);
  for (uint64_t hash = 1; hash <= 10; ++hash) {
    Came(hash);
    Publish();
  }
  EXPECT_FALSE(log_->Next(replay).has_value());
}

TEST_F(EventLogTest, AllPagesFitIntoTheNumbersThatThereAre) {
  Make({.max_batches = 1, .hashes_of_batch = 5});
  queue_.Restart(0);
  for (uint64_t hash = 1; hash <= 50; ++hash) Came(hash);
  Publish();
  ASSERT_EQ(log_->next_sequence(), 11u);
  Router late;
  EXPECT_EQ(Replay(8, late), Range(8, 11)) << "AllBlocksCleared, all pages, an empty batch";
  EXPECT_EQ(late.stored, router_.stored);
  Router later;
  EXPECT_THAT(Replay(9, later), IsEmpty()) << "no number is left for pages";
}

TEST_F(EventLogTest, LossLeavesAGapAndAllPagesAfterIt) {
  queue_.Restart(0);
  Came(1);
  Publish();
  const uint64_t before = log_->next_sequence();
  for (uint64_t hash = 2; hash <= 1200; ++hash) Came(hash);
  EXPECT_TRUE(queue_.NeedsPages());
  Went(1);
  EXPECT_EQ(queue_.lost(), 1200u);
  queue_.Restart(2);
  Came(7);
  Came(8);
  Publish();
  EXPECT_THAT(router_.Of(kTopic), ElementsAre(7, 8));
  EXPECT_EQ(router_.cleared, 2u);
  EXPECT_EQ(numbers_, (std::vector<uint64_t>{0, 1, before + 1, before + 2}));
  Router late;
  EXPECT_EQ(Replay(before, late).size(), log_->next_sequence() - before);
  EXPECT_EQ(late.stored, router_.stored);
}

TEST_F(EventLogTest, ARestartOfAnyNumberOfPagesFitsIntoTheQueue) {
  queue_.Restart(5000);
  for (uint64_t hash = 1; hash <= 5000; ++hash) Came(hash);
  for (uint64_t hash = 1; hash <= 1000; ++hash) Went(hash);
  EXPECT_FALSE(queue_.NeedsPages());
  EXPECT_EQ(queue_.size(), 6001u);
  Publish();
  EXPECT_EQ(log_->pages(), 4000u);
  for (uint64_t hash = 1; hash <= 1001; ++hash) Came(hash);
  EXPECT_TRUE(queue_.NeedsPages()) << "the usual bound holds again";
}

TEST_F(EventLogTest, BeforeTheFirstRestartNothingIsKeptAndNothingLost) {
  Came(1);
  Went(1);
  EXPECT_TRUE(queue_.NeedsPages());
  EXPECT_EQ(queue_.size(), 0u);
  EXPECT_EQ(queue_.lost(), 0u);
}

TEST_F(EventLogTest, WhatStartsOverAsksAgainWhichSpacesArePublished) {
  bool published = true;
  log_.emplace(EventLog::Options{.name = "node"}, [&](SpaceId) -> std::optional<EventLog::Label> {
    if (!published) return std::nullopt;
    return EventLog::Label{.model = "m1"};
  });
  queue_.Restart(1);
  Came(1);
  Publish();
  ASSERT_THAT(router_.Of(kTopic), ElementsAre(1));
  published = false;
  Came(2);
  queue_.StartOver();
  Came(3);
  EXPECT_TRUE(queue_.NeedsPages());
  EXPECT_EQ(queue_.lost(), 0u);
  queue_.Restart(3);
  for (uint64_t hash = 1; hash <= 3; ++hash) Came(hash);
  Publish();
  EXPECT_THAT(router_.Of(kTopic), IsEmpty());
  Router late;
  Replay(0, late);
  EXPECT_TRUE(late.stored.empty());
}

TEST_F(EventLogTest, AllPagesCanBeToldAgain) {
  queue_.Restart(0);
  for (uint64_t hash = 1; hash <= 5; ++hash) Came(hash, 1 + hash % 2);
  Publish();
  const auto stored = router_.stored;
  log_->Repeat(3.0, [&](const EventFrame& frame) {
    numbers_.push_back(frame.sequence);
    router_.Take(*frame.topic, *frame.payload);
  });
  EXPECT_EQ(router_.stored, stored);
  EXPECT_EQ(router_.cleared, 2u);
  EXPECT_EQ(numbers_, Range(0, log_->next_sequence()));
}

// A subscriber that asks at any time knows as much as one that heard everything.
TEST_F(EventLogTest, AReplayAtAnyTimeIsAsGoodAsHavingHeardAll) {
  Make({.max_batches = 8, .max_bytes = 4000, .hashes_of_batch = 5});
  std::mt19937_64 random(2026);
  queue_.Restart(0);
  Publish();
  std::set<std::pair<SpaceId, uint64_t>> there;
  int compared = 0;
  for (int round = 0; round < 300; ++round) {
    for (uint64_t n = random() % 20; n > 0; --n) {
      const SpaceId space = 1 + random() % 3;
      const uint64_t hash = 1 + random() % 60;
      if (there.erase({space, hash}) > 0) {
        Went(hash, space);
      } else {
        there.insert({space, hash});
        Came(hash, space);
      }
    }
    Publish();
    Router late{.from_start = false};
    const uint64_t first = random() % 2 == 0 ? 0 : random() % log_->next_sequence();
    const std::vector<uint64_t> numbers = Replay(first, late);
    if (numbers.empty()) continue;  // no number was free
    ASSERT_EQ(numbers, Range(first, log_->next_sequence()));
    if (late.cleared == 0) continue;  // the last batches alone
    ++compared;
    for (SpaceId space = 1; space <= 3; ++space) {
      const std::string topic = absl::StrCat("kv@node@m", space);
      ASSERT_EQ(late.Of(topic), router_.Of(topic)) << round;
    }
  }
  EXPECT_EQ(log_->pages(), there.size());
  EXPECT_GT(compared, 200);
}

}  // namespace
}  // namespace kvstow
