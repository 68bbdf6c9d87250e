// What tenants may send to a remote store.
#include "service/remote/send_budget.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace kvstow {
namespace {

using std::chrono::minutes;

TEST(SendBudgetTest, ATenantSendsItsLimitWithinTheWindowAndNoMore) {
  SendBudget budget(minutes(64));
  const Time begin{minutes(1000)};
  EXPECT_TRUE(budget.Take("a", 60, 100, begin));
  EXPECT_TRUE(budget.Take("a", 40, 100, begin + minutes(30)));
  EXPECT_FALSE(budget.Take("a", 1, 100, begin + minutes(63)));
  EXPECT_TRUE(budget.Take("b", 100, 100, begin + minutes(63))) << "tenants do not share";
  EXPECT_FALSE(budget.Take("a", 1, 100, begin + minutes(65))) << "a step longer";
  EXPECT_TRUE(budget.Take("a", 60, 100, begin + minutes(66))) << "the first bytes are forgotten";
  EXPECT_FALSE(budget.Take("a", 1, 100, begin + minutes(95)));
  EXPECT_TRUE(budget.Take("a", 40, 100, begin + minutes(96)));
}

TEST(SendBudgetTest, WhatWasSentWithoutALimitCountsOnceThereIsOne) {
  SendBudget budget(minutes(64));
  const Time begin{minutes(1000)};
  EXPECT_TRUE(budget.Take("a", 1'000'000, 0, begin));
  EXPECT_FALSE(budget.Take("a", 1, 1'000'000, begin + minutes(1)));
  EXPECT_TRUE(budget.Take("a", 1, 1'000'001, begin + minutes(1)));
}

TEST(SendBudgetTest, NeverMoreThanTheLimitInAnyWindow) {
  SendBudget budget(minutes(64));
  std::vector<std::pair<Time, uint64_t>> sent;
  for (int i = 0; i < 5000; ++i) {
    const Time now = Time(minutes(1000)) + std::chrono::seconds(i * 17);
    const uint64_t bytes = 1 + i * 37 % 50;
    if (budget.Take("a", bytes, 1000, now)) sent.push_back({now, bytes});
    uint64_t within = 0;
    for (size_t j = sent.size(); j-- > 0 && sent[j].first + minutes(64) > now;) {
      within += sent[j].second;
    }
    ASSERT_LE(within, 1000u) << i;
  }
  EXPECT_GT(sent.size(), 500u);
}

}  // namespace
}  // namespace kvstow
