// What every eviction policy promises, run on all of them: TEST_P over EvictionPolicies().
#ifndef KVSTOW_TESTS_CONFORMANCE_POLICY_CONFORMANCE_H_
#define KVSTOW_TESTS_CONFORMANCE_POLICY_CONFORMANCE_H_

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "storage/policies/eviction_policy.h"

namespace kvstow {

class PolicyConformance : public testing::TestWithParam<PolicyInfo> {
 protected:
  static bool Any(uint64_t) { return true; }
};

TEST_P(PolicyConformance, NothingIsNoVictim) {
  for (const uint64_t capacity : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40}) {
    const auto policy = GetParam().make(capacity);
    EXPECT_EQ(policy->Victim(Any), std::nullopt);
    policy->Insert(1, {});
    EXPECT_EQ(policy->Victim([](uint64_t) { return false; }), std::nullopt);
    EXPECT_EQ(policy->Victim(Any), 1u);
    policy->Remove(1, true);
    EXPECT_EQ(policy->Victim(Any), std::nullopt);
  }
}

TEST_P(PolicyConformance, UnknownItemsAreIgnored) {
  const auto policy = GetParam().make(10);
  policy->Touch(5);
  policy->Resize(5, 3, 1);
  policy->Remove(5, true);
  policy->Remove(5, false);
  EXPECT_EQ(policy->Victim(Any), std::nullopt);
  policy->Insert(5, {});
  policy->Remove(5, true);
  policy->Touch(5);  // a ghost, perhaps
  policy->Resize(5, 3, 1);
  policy->Remove(5, true);
  EXPECT_EQ(policy->Victim(Any), std::nullopt);
}

TEST_P(PolicyConformance, AVictimStaysUntilItIsRemoved) {
  const auto policy = GetParam().make(8);
  for (uint64_t id = 0; id < 12; ++id) policy->Insert(id, {});
  policy->Touch(3);
  const auto victim = policy->Victim(Any);
  ASSERT_TRUE(victim.has_value());
  EXPECT_EQ(policy->Victim(Any), victim);
  policy->Remove(*victim, true);
  EXPECT_NE(policy->Victim(Any), victim);
}

TEST_P(PolicyConformance, EveryItemGoesOnceAndNoneThatMayNot) {
  const auto policy = GetParam().make(100);
  std::set<uint64_t> left;
  for (uint64_t id = 0; id < 150; ++id) {
    policy->Insert(id,
                   {.bytes = 1 + id % 3, .parent = id % 10 == 0 ? PolicyItem::kNoParent : id - 1});
    left.insert(id);
    if (id % 4 == 0) policy->Touch(id / 2);
  }
  const auto may_go = [](uint64_t id) { return id % 7 != 0; };
  for (auto victim = policy->Victim(may_go); victim; victim = policy->Victim(may_go)) {
    ASSERT_NE(*victim % 7, 0u);
    ASSERT_EQ(left.erase(*victim), 1u) << *victim;
    policy->Remove(*victim, true);
  }
  EXPECT_EQ(left.size(), 22u);
}

// Held items are not offered, and none is lost over it, whatever else happens to them.
TEST_P(PolicyConformance, WhatIsHeldIsBackWhenItIsReleased) {
  std::mt19937_64 random(1);
  const auto policy = GetParam().make(60);
  policy->Hold(7);  // unknown
  policy->Release(7);
  std::set<uint64_t> left, held;
  for (int step = 0; step < 4000; ++step) {
    const uint64_t id = random() % 100;
    const uint64_t what = random() % 8;
    if (!left.contains(id)) {
      policy->Insert(id,
                     {.bytes = 1 + id % 3, .parent = id % 8 == 0 ? PolicyItem::kNoParent : id - 1});
      left.insert(id);
    } else if (what < 3) {
      policy->Hold(id);
      held.insert(id);
    } else if (what == 3) {
      policy->Release(id);
      held.erase(id);
    } else if (what == 4 && !held.contains(id)) {
      policy->Remove(id, random() % 2 == 0);
      left.erase(id);
    } else if (what == 5 && !held.contains(id)) {
      policy->Resize(id, 1 + random() % 4, 0.5);
    } else if (!held.contains(id)) {
      policy->Touch(id);
    }
    const auto victim = policy->Victim(Any);
    ASSERT_EQ(victim.has_value(), left.size() > held.size());
    ASSERT_TRUE(!victim.has_value() || (left.contains(*victim) && !held.contains(*victim)));
  }
  ASSERT_FALSE(held.empty());
  for (const uint64_t id : held) {
    policy->Touch(id);  // may be offered again, and is held again
    policy->Resize(id, 2, 1);
    policy->Hold(id);
    policy->Hold(id);
  }
  for (const uint64_t id : held) policy->Release(id);
  for (auto victim = policy->Victim(Any); victim; victim = policy->Victim(Any)) {
    ASSERT_EQ(left.erase(*victim), 1u) << *victim;
    policy->Remove(*victim, true);
  }
  EXPECT_TRUE(left.empty());
}

// Any calls in any order: victims are always items that are there, and the same calls give the same
// ones.
TEST_P(PolicyConformance, RandomCallsAreDeterministic) {
  const auto run = [](uint64_t seed) {
    std::mt19937_64 random(seed);
    const uint64_t capacity = 1 + random() % 300;
    const auto policy = GetParam().make(capacity);
    std::map<uint64_t, uint64_t> held;
    uint64_t used = 0;
    std::vector<uint64_t> victims;
    for (int step = 0; step < 4000; ++step) {
      const uint64_t id = random() % 200;
      const auto it = held.find(id);
      if (it == held.end()) {
        const uint64_t bytes = 1 + random() % 9;
        policy->Insert(id, {.bytes = bytes,
                            .worth = 0.01 * static_cast<double>(1 + random() % 1000),
                            .parent = id % 16 == 0 ? PolicyItem::kNoParent : id - 1});
        held[id] = bytes;
        used += bytes;
      } else if (const uint64_t what = random() % 8; what == 0) {
        policy->Remove(id, false);
        used -= it->second;
        held.erase(it);
      } else if (what == 1 && it->second > 1) {
        --it->second;
        --used;
        policy->Resize(id, it->second, 0.5);
      } else {
        policy->Touch(id);
      }
      while (used > capacity) {
        const auto victim = policy->Victim(Any);
        EXPECT_TRUE(victim.has_value() && held.contains(*victim));
        if (!victim.has_value() || !held.contains(*victim)) return victims;
        used -= held[*victim];
        held.erase(*victim);
        policy->Remove(*victim, true);
        victims.push_back(*victim);
      }
    }
    return victims;
  };
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const std::vector<uint64_t> victims = run(seed);
    EXPECT_FALSE(victims.empty());
    EXPECT_EQ(run(seed), victims);
  }
}

// A few items that are used all the time survive a scan of ones that never are again, whatever the
// capacity was before.
TEST_P(PolicyConformance, WhatIsUsedAllTheTimeStays) {
  for (const uint64_t before : {uint64_t{100}, uint64_t{0}, uint64_t{7}, uint64_t{1} << 40}) {
    SCOPED_TRACE(before);
    const auto policy = GetParam().make(before);
    std::set<uint64_t> held;
    for (uint64_t id = 900; before != 100 && id < 960; ++id) {
      policy->Insert(id, {});
      if (id % 2 == 0) policy->Touch(id);
      if (id % 3 == 0) policy->Hold(id);
      held.insert(id);
    }
    policy->SetCapacity(100);
    for (const uint64_t id : held) policy->Release(id);
    uint64_t misses = 0;
    const auto use = [&](uint64_t id) {
      if (held.contains(id)) return policy->Touch(id);
      misses += id < 10 ? 1 : 0;
      policy->Insert(id, {});
      held.insert(id);
      while (held.size() > 100) {
        const uint64_t victim = *policy->Victim(Any);
        policy->Remove(victim, true);
        held.erase(victim);
      }
    };
    for (uint64_t i = 0; i < 5000; ++i) {
      use(i % 10);
      use(1000 + i);
    }
    EXPECT_LT(misses, 60u);
  }
}

INSTANTIATE_TEST_SUITE_P(All, PolicyConformance, testing::ValuesIn(EvictionPolicies()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace kvstow

#endif  // KVSTOW_TESTS_CONFORMANCE_POLICY_CONFORMANCE_H_
