// What the store has forgotten and the disk has not: its bytes, its name, and what comes after it.
#include <atomic>
#include <thread>

#include "tests/storage/store/cooling_fixture.h"

namespace kvstow {
namespace {

using absl::StatusCode;

class EraseTest : public CoolingTest {
 protected:
  void RefuseErases(bool refuse) { faults_[2].fail_erases = refuse; }
};

TEST_F(EraseTest, BytesCountUntilTheDiskHasErasedThem) {
  Open(0, 0, 10 * kPage);
  for (uint64_t key = 1; key <= 3; ++key) PutOk(key, Ack::kProcess);
  RefuseErases(true);
  EXPECT_THAT(store_->Delete(PrfPage{.key = 1}.name(), false), HasCode(StatusCode::kUnavailable));
  EXPECT_EQ(store_->residency().Usage().pages, 2u);
  EXPECT_EQ(Bytes(TierId::kDisk), 3 * kPage);
  RefuseErases(false);
  store_->cooling().RunDemotion();
  EXPECT_EQ(Bytes(TierId::kDisk), 2 * kPage);
  EXPECT_THAT(store_->Delete(PrfPage{.key = 1}.name(), false), HasCode(StatusCode::kNotFound));
}

// A disk that refuses removals gets no room by more of them.
TEST_F(EraseTest, ADiskThatRefusesRemovalsLosesOnePage) {
  Open(0, 0, 10 * kPage);
  for (uint64_t key = 1; key <= 10; ++key) {
    ASSERT_OK(Put({.key = key, .whole = true}, Ack::kProcess).status());
  }
  const uint64_t before = store_->residency().Usage().pages;
  RefuseErases(true);
  for (uint64_t key = 11; key <= 20; ++key) {
    EXPECT_THAT(Put({.key = key, .whole = true}, Ack::kProcess).status(),
                HasCode(StatusCode::kResourceExhausted));
  }
  EXPECT_GE(store_->residency().Usage().pages, before - 1);
  RefuseErases(false);
  PutOk(11, Ack::kProcess);
  ExpectBudgetsHold();
}

TEST_F(EraseTest, APageThatIsWrittenAgainOutlivesTheLateErase) {
  Open(0, 10 * kPage, 10 * kPage);
  PutOk(1, Ack::kProcess);
  RefuseErases(true);
  ASSERT_FALSE(store_->cooling().Shrink(TierId::kDisk, 0).ok());
  ASSERT_EQ(Segments(1), 3u) << "in memory";
  EXPECT_THAT(Put({.key = 1}, Ack::kProcess).status(), HasCode(StatusCode::kUnavailable))
      << "its number is still to be erased";
  RefuseErases(false);
  EXPECT_EQ(*Put({.key = 1}, Ack::kProcess), PutOutcome::kAlreadyThere);
  store_->cooling().RunDemotion();
  Reopen();
  EXPECT_EQ(ReadBack({.key = 1}), 3u);
}

// A write that failed may have reached the log.
TEST_F(EraseTest, WhatMayBeOnDiskIsErasedThere) {
  Open(0, 10 * kPage, 10 * kPage);
  PutOk(1);
  faults_[2].fail_writes = true;
  EXPECT_FALSE(Put({.key = 1}, Ack::kProcess).ok());
  EXPECT_THAT(store_->Delete(PrfPage{.key = 1}.name(), false), HasCode(StatusCode::kUnavailable));
  faults_[2].fail_writes = false;
  EXPECT_OK(store_->Flush());
  EXPECT_THAT(store_->Delete(PrfPage{.key = 1}.name(), false), HasCode(StatusCode::kNotFound));
}

// Waiting removals take memory. So a disk that takes neither pages nor removals gets no more pages.
TEST_F(EraseTest, WhatMayBeOnDiskTakesNoMemoryWithoutEnd) {
  Open(0, 0, 10 * kPage);
  PutOk(1, Ack::kProcess);
  faults_[2].fail_writes = true;
  const int before = faults_[2].writes;
  for (uint64_t key = 2; key <= 2000; ++key) {
    EXPECT_FALSE(store_->Put(PrfPage{.key = key}.ToStore(Ack::kProcess)).ok());
  }
  EXPECT_LE(faults_[2].writes, before + 1024);
  faults_[2].fail_writes = false;
  PutOk(2001, Ack::kProcess);
  EXPECT_EQ(store_->residency().Usage().pages, 2u);
}

TEST_F(EraseTest, ARecoveredPageThatWasReplacedIsErasedInTheEnd) {
  Open(0, 10 * kPage, 10 * kPage);
  PutOk(1, Ack::kProcess);
  RefuseErases(true);
  store_->Delete(PrfPage{.key = 1}.name(), false).IgnoreError();
  ASSERT_OK(Put({.key = 1, .version = 2}, Ack::kProcess).status());
  Reopen();
  EXPECT_EQ(ReadBack({.key = 1, .version = 2}), 3u);
  EXPECT_EQ(Bytes(TierId::kDisk), 2 * kPage);
  EXPECT_THAT(store_->Delete(PrfPage{.key = 1}.name(), false), HasCode(StatusCode::kUnavailable));
  RefuseErases(false);
  store_->cooling().RunDemotion();
  EXPECT_EQ(Bytes(TierId::kDisk), 0u);
  Reopen();
  EXPECT_EQ(store_->residency().Usage().pages, 0u);
}

TEST_F(EraseTest, DropSpaceTakesItsPagesAndNoOthers) {
  Open(0, 100 * kPage, 100 * kPage);
  ASSERT_OK(store_->SaveSpace({.id = 2, .bytes = SharedBytes::Take(std::string("two"))}));
  for (uint64_t key = 1; key <= 9; ++key) {
    const auto ack = static_cast<Ack>(key % 3);
    PutOk(key, ack);
    ASSERT_OK(Put({.key = key, .space = 2}, ack).status());
  }
  const PageName pinned = PrfPage{.key = 4, .space = 2}.name();
  const absl::string_view keys[] = {pinned.key};
  const LeaseId lease = store_->residency().Lookup(2, keys, true).lease;
  ASSERT_OK(store_->residency().Pin(pinned, true));
  ASSERT_OK(store_->DropSpace(2));
  EXPECT_EQ(store_->residency().Usage(2).pages, 0u);
  EXPECT_EQ(store_->residency().Usage().pages, 9u);
  EXPECT_EQ(store_->residency().Usage().pinned_pages, 0u);
  EXPECT_EQ(Bytes(TierId::kHost), 9 * kPage);
  store_->residency().Release(lease);
  EXPECT_OK(store_->residency().CheckInvariants());
  EXPECT_OK(store_->DropSpace(2)) << "again";
  EXPECT_THAT(store_->DropSpace(0), HasCode(StatusCode::kInvalidArgument));
  EXPECT_THAT(Put({.key = 1, .space = 2}).status(), HasCode(StatusCode::kFailedPrecondition));
  EXPECT_EQ(store_->residency().NewSpaceId(), 3u);
  Reopen();
  ASSERT_EQ(store_->recovered_spaces().size(), 1u);
  EXPECT_EQ(store_->recovered_spaces()[0].id, 1u);
  EXPECT_EQ(store_->residency().NewSpaceId(), 3u) << "not again the largest, which is gone";
  EXPECT_EQ(store_->residency().Counters().damaged_records, 0u);
}

TEST_F(EraseTest, APutThatIsUnderWayLeavesNothingInADroppedSpace) {
  Open(0, 0, 100 * kPage);
  ASSERT_OK(store_->SaveSpace({.id = 2, .bytes = SharedBytes::Take(std::string("two"))}));
  std::atomic<bool> begun = false, go_on = false;
  faults_[2].before_write = [&] {
    if (begun.exchange(true)) return;
    go_on.wait(false);
  };
  std::thread put(
      [&] { EXPECT_OK(store_->Put(PrfPage{.key = 1, .space = 2}.ToStore()).status()); });
  while (!begun) std::this_thread::yield();
  std::thread drop([&] { EXPECT_OK(store_->DropSpace(2)); });
  // Once puts are refused it waits for the one that is under way.
  while (store_->Put(PrfPage{.key = 2, .space = 2}.ToStore()).ok()) std::this_thread::yield();
  go_on = true;
  go_on.notify_all();
  put.join();
  drop.join();
  EXPECT_EQ(store_->residency().Usage().pages, 0u);
  EXPECT_EQ(Bytes(TierId::kDisk), 0u);
  Reopen();
  EXPECT_EQ(store_->recovered_spaces().size(), 1u);
  EXPECT_EQ(store_->residency().Counters().recovered_pages +
                store_->residency().Counters().damaged_records,
            0u);
}

}  // namespace
}  // namespace kvstow
