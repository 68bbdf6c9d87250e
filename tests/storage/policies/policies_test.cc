// Each policy does something that others do not; and all of them pass one suite.
#include <gmock/gmock.h>

#include "storage/policies/reuse_estimator.h"
#include "tests/conformance/policy_conformance.h"

namespace kvstow {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<EvictionPolicy> Make(absl::string_view name, uint64_t capacity) {
  return (*FindEvictionPolicy(name))->make(capacity);
}

// Evicts until nothing is left.
std::vector<uint64_t> Drain(EvictionPolicy& policy) {
  std::vector<uint64_t> out;
  const auto any = [](uint64_t) { return true; };
  for (auto victim = policy.Victim(any); victim.has_value(); victim = policy.Victim(any)) {
    policy.Remove(*victim, true);
    out.push_back(*victim);
  }
  return out;
}

TEST(PoliciesTest, NamesAreFoundAndUnknownOnesListThem) {
  EXPECT_EQ((*FindEvictionPolicy("arc"))->name, "arc");
  EXPECT_EQ(EvictionPolicies()[0].name, "kvstow");
  EXPECT_THAT(FindEvictionPolicy("random").status().message(), HasSubstr("kvstow, lru, slru"));
}

TEST(PoliciesTest, LruTakesTheOldestUse) {
  const auto policy = Make("lru", 4);
  for (uint64_t id = 1; id <= 4; ++id) policy->Insert(id, {});
  policy->Touch(1);
  policy->Resize(2, 5, 1);
  EXPECT_THAT(Drain(*policy), ElementsAre(2, 3, 4, 1));
}

TEST(PoliciesTest, SlruKeepsWhatWasUsedTwiceWithinItsShare) {
  const auto policy = Make("slru", 10);  // two bytes are protected
  for (uint64_t id = 1; id <= 5; ++id) policy->Insert(id, {});
  for (const uint64_t id : {1, 2, 3}) policy->Touch(id);  // 1 falls back
  EXPECT_THAT(Drain(*policy), ElementsAre(4, 5, 1, 2, 3));
}

TEST(PoliciesTest, ArcLearnsFromItsGhosts) {
  const auto policy = Make("arc", 4);
  for (uint64_t id = 1; id <= 4; ++id) policy->Insert(id, {});
  policy->Touch(4);  // in T2
  const auto any = [](uint64_t) { return true; };
  ASSERT_EQ(policy->Victim(any), 1u);  // T1 is over its target of 0
  policy->Remove(1, true);
  policy->Insert(1, {});  // a ghost of T1: the target grows by 1, and it is in T2
  policy->Remove(2, true);
  EXPECT_EQ(policy->Victim(any), 4u) << "T1 holds one item, which is its target";
}

TEST(PoliciesTest, S3FifoGivesSecondChancesAndRemembersGhosts) {
  const auto policy = Make("s3fifo", 10);
  for (uint64_t id = 1; id <= 3; ++id) policy->Insert(id, {});
  policy->Touch(1);
  policy->Touch(1);  // moves on to the main queue
  const auto any = [](uint64_t) { return true; };
  ASSERT_EQ(policy->Victim(any), 2u);
  policy->Remove(2, true);
  policy->Insert(2, {});  // its ghost was there: the main queue
  EXPECT_THAT(Drain(*policy), ElementsAre(3, 1, 2));
}

TEST(PoliciesTest, WTinyLfuRefusesWhatIsUsedLess) {
  const auto policy = Make("wtinylfu", 100);
  for (uint64_t id = 1; id <= 100; ++id) {
    policy->Insert(id, {});
    policy->Touch(id);
  }
  policy->Insert(1000, {});
  policy->Insert(1001, {});
  EXPECT_GT(*policy->Victim([](uint64_t) { return true; }), 99u);
}

TEST(PoliciesTest, GdsfWeighsUsesByWorth) {
  const auto policy = Make("gdsf", 100);
  policy->Insert(1, {.worth = 4});
  policy->Insert(2, {.worth = 1});
  policy->Insert(3, {.worth = 2});
  for (int i = 0; i < 5; ++i) policy->Touch(2);  // 6 uses
  EXPECT_THAT(Drain(*policy), ElementsAre(3, 1, 2));
  policy->Insert(4, {.worth = 2});
  policy->Insert(5, {.worth = 2});
  policy->Resize(4, 1, 3);
  EXPECT_THAT(Drain(*policy), ElementsAre(5, 4));
}

TEST(ValuePolicyTest, LeavesGoBeforeTheirAncestors) {
  const auto policy = Make("kvstow", 100);
  policy->Insert(1, {});
  policy->Insert(2, {.parent = 1});
  policy->Insert(3, {.parent = 2});
  policy->Insert(4, {.parent = 2});
  for (int i = 0; i < 9; ++i) policy->Touch(3);
  EXPECT_THAT(Drain(*policy), ElementsAre(4, 3, 2, 1));
}

TEST(ValuePolicyTest, AlsoWhenAParentBecomesKnownLaterOrComesAfterItsChildren) {
  const auto policy = Make("kvstow", 100);
  policy->Insert(3, {.parent = 2});
  policy->Insert(4, {.parent = 2});
  policy->Insert(1, {});
  policy->Insert(2, {});
  policy->SetParent(2, 1);
  policy->SetParent(2, 4);  // it has one
  for (int i = 0; i < 9; ++i) policy->Touch(3);
  EXPECT_THAT(Drain(*policy), ElementsAre(4, 3, 2, 1));
  // Ghosts remember nothing of children that have gone.
  policy->Insert(2, {});
  policy->Insert(5, {});
  for (int i = 0; i < 9; ++i) policy->Touch(5);
  EXPECT_THAT(Drain(*policy), ElementsAre(2, 5));
}

TEST(ValuePolicyTest, WhatIsWorthNothingGoesFirst) {
  const auto policy = Make("kvstow", 100);
  policy->Insert(1, {});
  policy->Insert(2, {.worth = 0});
  policy->Insert(3, {.worth = 1e-9});
  EXPECT_THAT(Drain(*policy), ElementsAre(2, 3, 1));
}

TEST(ValuePolicyTest, BytesWorthLessGoFirstAndWorthMayChange) {
  const auto policy = Make("kvstow", 100);
  policy->Insert(1, {.worth = 8});
  policy->Insert(2, {.worth = 1});
  policy->Insert(3, {.worth = 2});
  policy->Resize(3, 1, 64);
  EXPECT_THAT(Drain(*policy), ElementsAre(2, 1, 3));
}

TEST(ValuePolicyTest, GhostsThatComeAndGoAreBounded) {
  const auto policy = Make("kvstow", 16);
  for (uint64_t i = 0; i < 200'000; ++i) {
    policy->Insert(i % 40, {});
    if (i >= 16) policy->Remove((i - 16) % 40, true);
  }
  EXPECT_EQ(Drain(*policy).size(), 16u);
}

TEST(ReuseEstimatorTest, AgesAreHalfOctavesOfTheUnit) {
  const ReuseEstimator estimator(1, 100);
  EXPECT_EQ(estimator.AgeBucket(0), 0u);
  EXPECT_EQ(estimator.AgeBucket(99), 0u);
  EXPECT_EQ(estimator.AgeBucket(100), 1u);
  EXPECT_EQ(estimator.AgeBucket(141), 2u);
  EXPECT_EQ(estimator.AgeBucket(200), 3u);
  EXPECT_EQ(estimator.AgeBucket(UINT64_MAX), ReuseEstimator::kAges - 1);
}

// Items of class 1 are used about 400 after their last use if at all: the best time to let one go
// is after that, and a new one is worth less than one of that age.
TEST(ReuseEstimatorTest, TheRateIsHighestJustBeforeUsesCome) {
  ReuseEstimator estimator(2, 100);
  const size_t when = estimator.AgeBucket(400);
  for (int i = 0; i < 1000; ++i) {
    for (size_t age = 0; age < ReuseEstimator::kAges; ++age) {
      estimator.CountEntered(0, age);
      if (age <= when || i % 2 == 0) estimator.CountEntered(1, age);
    }
    if (i % 2 == 1) estimator.CountUsed(1, when);
  }
  estimator.Estimate();
  EXPECT_GT(estimator.Rate(1, when), 1.5 * estimator.Rate(1, 0));
  EXPECT_GT(estimator.Rate(1, when), 10 * estimator.Rate(1, when + 1));
  EXPECT_GT(estimator.Rate(1, 0), 5 * estimator.Rate(0, 0));
}

}  // namespace
}  // namespace kvstow
