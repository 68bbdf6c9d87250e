// The order in which pages are sent to a remote store.
#include "storage/policies/send_queue.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>

namespace kvstow {
namespace {

using Queue = SendQueue<std::string>;
using Names = std::vector<std::string>;

TEST(SendQueueTest, TheNewestPromptGoesFirstAndItsLeadingPagesBeforeTheOthers) {
  Queue queue(100);
  queue.Add("a0", "");
  queue.Add("a1", "a0");
  queue.Add("b0", "");
  queue.Add("b1", "b0");
  queue.Add("a2", "a1");  // the older prompt goes on
  EXPECT_EQ(queue.Take(3), (Names{"b0", "b1", "a0"}));
  EXPECT_EQ(queue.Take(9), (Names{"a1", "a2"}));
  EXPECT_EQ(queue.size(), 0u);
  EXPECT_TRUE(queue.Take(9).empty());
}

TEST(SendQueueTest, WhatWasUsedAgainGoesBeforeAllOthersInThatOrder) {
  Queue queue(100);
  for (const char* page : {"a", "b", "c", "d"}) queue.Add(page, "");
  queue.Use("b");
  queue.Use("a");
  queue.Use("b");  // it keeps its place
  queue.Use("elsewhere");
  queue.Add("a", "");
  EXPECT_EQ(queue.Take(9), (Names{"b", "a", "d", "c"}));
}

TEST(SendQueueTest, AParentThatWasTakenOrUsedAgainIsNoParent) {
  Queue queue(100);
  queue.Add("a0", "");
  queue.Use("a0");
  queue.Add("b0", "");
  queue.Add("a1", "a0");
  EXPECT_EQ(queue.Take(1), Names{"a0"});
  queue.Add("a2", "a0");
  EXPECT_EQ(queue.Take(9), (Names{"a2", "a1", "b0"}));
}

TEST(SendQueueTest, AFullQueueForgetsTheLastPageOfTheOldestPrompt) {
  Queue queue(4);
  queue.Add("a0", "");
  queue.Add("a1", "a0");
  queue.Add("b0", "");
  EXPECT_FALSE(queue.Add("c0", ""));
  EXPECT_FALSE(queue.Add("c0", "")) << "it waits already";
  EXPECT_TRUE(queue.Add("d0", ""));
  queue.Use("a0");
  EXPECT_TRUE(queue.Add("e0", ""));
  EXPECT_EQ(queue.Take(9), (Names{"a0", "e0", "d0", "c0"}));
  Queue used(1);
  used.Add("a", "");
  used.Use("a");
  EXPECT_TRUE(used.Add("b", "a"));
  EXPECT_EQ(used.Take(9), Names{"b"});
}

TEST(SendQueueTest, EachPageLeavesOnceWhateverHappens) {
  std::mt19937_64 random(11);
  SendQueue<uint64_t> queue(200);
  std::set<uint64_t> waiting;
  uint64_t next = 1, dropped = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (const uint64_t what = random() % 10; what < 6) {
      dropped += queue.Add(next, random() % next) ? 1 : 0;
      waiting.insert(next++);
    } else if (what < 9) {
      queue.Use(random() % next);
    } else {
      for (const uint64_t page : queue.Take(random() % 8)) ASSERT_EQ(waiting.erase(page), 1u);
    }
    ASSERT_EQ(queue.size() + dropped, waiting.size());
  }
  EXPECT_GT(dropped, 0u);
}

}  // namespace
}  // namespace kvstow
