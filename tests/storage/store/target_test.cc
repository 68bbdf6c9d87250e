// What a page keeps that cools into a tier with a target, and what samples tell of pages.
#include <map>

#include "tests/storage/store/store_fixture.h"

namespace kvstow {
namespace {

using absl::StatusCode;
using std::chrono::seconds;

// Pages have 10,000 raw bytes and three segments of 1,000: 1.6 bits of a value each.
class TargetTest : public StoreTest {
 protected:
  static constexpr uint64_t kPage = 3013;

  void PutOk(const PrfPage& page, Ack ack = Ack::kMemory) { ASSERT_OK(Put(page, ack).status()); }
  std::vector<TierId> Tiers(uint64_t key) {
    const auto facts = store_->residency().Find(PrfPage{.key = key}.name());
    return facts.ok() ? facts->tiers : std::vector<TierId>();
  }
  void EmptyHost() { ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 0)); }
};

TEST_F(TargetTest, WhatIsBeyondATiersTargetIsNotCarriedThere) {
  options_.target_bits = {0, 0, 3.3};
  Open(0, 8 * kPage, 80 * kPage);
  PutOk({.key = 1});
  EXPECT_EQ(ReadBack({.key = 1}), 3u) << "in memory it is as it was put";
  EmptyHost();
  EXPECT_EQ(Tiers(1), std::vector(2, TierId::kDisk)) << "3.2 bits, the header's among them";
  EXPECT_EQ(ReadBack({.key = 1}), 2u);
  EXPECT_EQ(store_->residency().Counters().dropped_segments, 1u);
  EXPECT_EQ(store_->residency().Usage().encoded_bytes, kPage - 1000);
  Reopen();
  EXPECT_EQ(ReadBack({.key = 1}), 2u);
}

TEST_F(TargetTest, EachStepDownHasItsOwn) {
  options_.target_bits = {0, 3.3, 1.7};
  Open(8 * kPage, 8 * kPage, 80 * kPage);
  PutOk({.key = 1});
  EXPECT_EQ(Tiers(1), std::vector(3, TierId::kGpu));
  ASSERT_OK(store_->cooling().Shrink(TierId::kGpu, 0));
  EXPECT_EQ(Tiers(1), std::vector(2, TierId::kHost));
  EmptyHost();
  EXPECT_EQ(Tiers(1), std::vector(1, TierId::kDisk));
  EXPECT_EQ(ReadBack({.key = 1}), 1u);
}

TEST_F(TargetTest, TheBaseStaysHoweverLowTheTarget) {
  options_.target_bits = {0, 0, 0.001};
  Open(0, 8 * kPage, 80 * kPage);
  PutOk({.key = 1});
  EmptyHost();
  EXPECT_EQ(Tiers(1), std::vector(1, TierId::kDisk));
}

TEST_F(TargetTest, WhatWasWrittenForAnAckLosesItsTailWhenItLeavesMemory) {
  options_.target_bits = {0, 0, 1.7};
  Open(0, 8 * kPage, 80 * kPage);
  PutOk({.key = 1}, Ack::kProcess);
  EXPECT_EQ(Bytes(TierId::kDisk), kPage);
  EmptyHost();
  EXPECT_EQ(Bytes(TierId::kDisk), kPage - 2000);
  Reopen();
  EXPECT_EQ(ReadBack({.key = 1}), 1u) << "and it stays lost";
}

TEST_F(TargetTest, WholeAndProtectedPagesMoveAsTheyAre) {
  options_.target_bits = {0, 0, 1.7};
  Open(0, 8 * kPage, 80 * kPage);
  PutOk({.key = 1, .whole = true});
  PutOk({.key = 2});
  PutOk({.key = 3});
  ASSERT_OK(store_->residency().Pin(PrfPage{.key = 2}.name(), true));
  ASSERT_NE(Lease(3), 0u);
  EmptyHost();
  for (const uint64_t key : {1, 2, 3}) EXPECT_EQ(Tiers(key), std::vector(3, TierId::kDisk)) << key;
  EXPECT_EQ(ReadBack({.key = 1, .whole = true}), 3u);
}

TEST_F(TargetTest, APageThatComesBackKeepsWhatItHas) {
  options_.target_bits = {0, 0, 3.3};
  Open(0, 8 * kPage, 80 * kPage);
  PutOk({.key = 1});
  EmptyHost();
  EXPECT_EQ(ReadBack({.key = 1}), 2u);
  EXPECT_EQ(Tiers(1), std::vector(2, TierId::kHost)) << "reading has copied it up";
  EmptyHost();
  EXPECT_EQ(ReadBack({.key = 1}), 2u);
}

TEST_F(TargetTest, TargetsThatMakeNoSenseAreRefused) {
  const auto status = [&](double gpu, double host, double disk) {
    TieredStoreOptions options{.budget_bytes = {0, 1, 0}, .target_bits = {gpu, host, disk}};
    TieredStoreParts parts;
    parts.tiers[1] = MakeMemoryTier(HostDevice());
    return TieredStore::Open(options, std::move(parts)).status();
  };
  EXPECT_THAT(status(8, 0, 0), HasCode(StatusCode::kFailedPrecondition));
  EXPECT_THAT(status(0, -1, 0), HasCode(StatusCode::kFailedPrecondition));
  EXPECT_THAT(status(0, 0, std::nan("")), HasCode(StatusCode::kFailedPrecondition));
  EXPECT_THAT(status(0, 2, 4), HasCode(StatusCode::kFailedPrecondition));
  EXPECT_OK(status(0, 4, 4));
  EXPECT_OK(status(0, 0, 4));
}

TEST_F(TargetTest, SamplesTellSpaceSizeAndAge) {
  Open(0, 80 * kPage, 80 * kPage);
  PutOk({.key = 1});
  clock_.Advance(seconds(90));
  PutOk({.key = 2, .space = 2});
  PutOk({.key = 3});
  clock_.Advance(seconds(10));
  store_->residency().Use(PrfPage{.key = 3}.name());
  std::map<PageNumber, PageSample> by_number;
  for (PageSample& s : store_->residency().Sample(0, 100)) by_number[s.page.number] = std::move(s);
  ASSERT_EQ(by_number.size(), 3u);
  EXPECT_EQ(by_number[1].idle, seconds(100));
  EXPECT_EQ(by_number[2].idle, seconds(10));
  EXPECT_EQ(by_number[2].space, 2u);
  EXPECT_EQ(by_number[3].idle, seconds(0)) << "a prompt has reached it";
  EXPECT_EQ(by_number[3].raw_bytes, 10000u);
  EXPECT_EQ(by_number[3].page.segments, 3u);
  EXPECT_EQ(store_->residency().Sample(2, 100).size(), 1u);
  EXPECT_EQ(store_->residency().Sample(0, 2).size(), 2u);
  EXPECT_TRUE(store_->residency().Sample(7, 100).empty());
  clock_.Advance(-seconds(1000));
  EXPECT_EQ(store_->residency().Sample(2, 1)[0].idle, seconds(0))
      << "a clock that goes back makes nothing old";
}

TEST_F(TargetTest, AgesBeginAnewWithTheStore) {
  Open(0, 0, 80 * kPage);
  PutOk({.key = 1}, Ack::kProcess);
  clock_.Advance(seconds(500));
  Reopen();
  clock_.Advance(seconds(5));
  ASSERT_EQ(store_->residency().Sample(1, 10).size(), 1u);
  EXPECT_EQ(store_->residency().Sample(1, 10)[0].idle, seconds(5));
}

}  // namespace
}  // namespace kvstow
