// How pages cool: who goes first, what moves, what is dropped, and that budgets hold.
#include <thread>

#include "tests/storage/store/cooling_fixture.h"

namespace kvstow {
namespace {

using absl::StatusCode;
using std::chrono::seconds;
using testing::HasSubstr;

TEST_F(CoolingTest, WithoutADiskTheOldestPageLosesItsTailFirst) {
  options_.eviction_policy = "lru";
  Open(0, 4 * kPage, 0);
  for (uint64_t key = 1; key <= 4; ++key) {
    PutOk(key);
    clock_.Advance(seconds(1));
  }
  ASSERT_EQ(ReadBack({.key = 2}), 3u);  // no use
  Use(1);                               // page 2 is the oldest now
  PutOk(5);
  EXPECT_EQ(Segments(1), 3u);
  EXPECT_EQ(Segments(2), 0u);
  EXPECT_EQ(Segments(3), 3u);
  ExpectBudgetsHold();
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 4 * kPage - 1500));
  EXPECT_EQ(Segments(3), 1u) << "the base is kept";
  EXPECT_EQ(ReadBack({.key = 3}), 1u);
}

TEST_F(CoolingTest, WholePagesGoWhole) {
  Open(0, 4 * kPage, 0);
  for (uint64_t key = 1; key <= 4; ++key) {
    ASSERT_OK(Put({.key = key, .whole = true}).status());
    clock_.Advance(seconds(1));
  }
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 4 * kPage - 1));
  EXPECT_EQ(Segments(1), 0u);
  EXPECT_EQ(Segments(2), 3u);
  EXPECT_EQ(store_->residency().Counters().dropped_pages, 1u);
}

TEST_F(CoolingTest, PagesMoveFromGpuToHostToDiskAndStayReadable) {
  Open(2 * kPage, 2 * kPage, 100 * kPage);
  for (uint64_t key = 1; key <= 8; ++key) {
    PutOk(key);
    clock_.Advance(seconds(1));
    ExpectBudgetsHold();
  }
  EXPECT_EQ(TierOf(8), TierId::kGpu);
  EXPECT_EQ(TierOf(6), TierId::kHost);
  EXPECT_EQ(TierOf(1), TierId::kDisk);
  EXPECT_EQ(store_->residency().Usage().pages, 8u);
  EXPECT_GT(store_->residency().Counters().demoted_bytes, 0u);
  EXPECT_EQ(store_->residency().Counters().dropped_segments, 0u);
  for (uint64_t key = 1; key <= 8; ++key) EXPECT_EQ(ReadBack({.key = key}), 3u) << key;
}

TEST_F(CoolingTest, WatermarksAreKept) {
  Open(0, 100 * kPage, 1000 * kPage);
  options_.high_watermark = 0.8;
  options_.low_watermark = 0.5;
  Reopen();
  for (uint64_t key = 1; key <= 79; ++key) PutOk(key);
  store_->cooling().RunDemotion();
  EXPECT_EQ(PagesIn(TierId::kHost), 79u) << "below the high watermark nothing moves";
  for (uint64_t key = 80; key <= 90; ++key) PutOk(key);
  store_->cooling().RunDemotion();
  EXPECT_LE(Bytes(TierId::kHost), 50 * kPage);
  EXPECT_GT(Bytes(TierId::kHost), 48 * kPage);
  EXPECT_EQ(store_->residency().Usage().pages, 90u);
}

TEST_F(CoolingTest, DiskOverItsBudgetForgetsTheOldest) {
  Open(0, 2 * kPage, 4 * kPage);
  for (uint64_t key = 1; key <= 12; ++key) {
    PutOk(key, key % 2 == 0 ? Ack::kProcess : Ack::kMemory);
    clock_.Advance(seconds(1));
    ExpectBudgetsHold();
  }
  EXPECT_EQ(Segments(1), 0u);
  EXPECT_EQ(Segments(12), 3u);
  for (uint64_t key = 1; key <= 12; ++key) EXPECT_EQ(ReadBack({.key = key}), Segments(key));
  Reopen();
  for (uint64_t key = 1; key <= 12; ++key) EXPECT_EQ(ReadBack({.key = key}), Segments(key));
  EXPECT_GT(store_->residency().Usage().pages, 0u);
}

TEST_F(CoolingTest, LeasedAndPinnedPagesLoseNothing) {
  Open(0, 4 * kPage, 0);
  for (uint64_t key = 1; key <= 4; ++key) PutOk(key);
  for (uint64_t key = 1; key <= 3; ++key) ASSERT_NE(Lease(key), 0u);
  ASSERT_OK(store_->residency().Pin(PrfPage{.key = 4}.name(), true));
  const auto refused = store_->Put(PrfPage{.key = 5}.ToStore());
  EXPECT_THAT(refused.status(), HasCode(StatusCode::kResourceExhausted));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("leased or pinned"));
  EXPECT_THAT(store_->cooling().Shrink(TierId::kHost, 0), HasCode(StatusCode::kResourceExhausted));
  for (uint64_t key = 1; key <= 4; ++key) EXPECT_EQ(ReadBack({.key = key}), 3u) << key;

  clock_.Advance(options_.lease_ttl);  // nobody released them
  PutOk(5);
  EXPECT_EQ(store_->residency().Counters().expired_leases, 3u);
  EXPECT_EQ(Segments(4), 3u) << "still pinned";
  EXPECT_EQ(store_->residency().Usage().pinned_pages, 1u);
  ASSERT_OK(store_->residency().Pin(PrfPage{.key = 4}.name(), false));
  EXPECT_OK(store_->cooling().Shrink(TierId::kHost, 0));
  EXPECT_EQ(store_->residency().Usage().pages, 0u);
}

TEST_F(CoolingTest, ALeasedPageMayCool) {
  Open(0, 2 * kPage, 100 * kPage);
  PutOk(1);
  ASSERT_NE(Lease(1), 0u);
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 0));
  EXPECT_EQ(TierOf(1), TierId::kDisk);
  EXPECT_EQ(ReadBack({.key = 1}), 3u);
  EXPECT_THAT(store_->cooling().Shrink(TierId::kDisk, 0), HasCode(StatusCode::kResourceExhausted));
}

TEST_F(CoolingTest, ARenewedLeaseLastsAnEndedOneDoesNot) {
  Open(0, 4 * kPage, 0);
  PutOk(1);
  const LeaseId lease = Lease(1);
  clock_.Advance(options_.lease_ttl - seconds(1));
  EXPECT_TRUE(store_->residency().Renew(lease));
  clock_.Advance(options_.lease_ttl - seconds(1));
  EXPECT_THAT(store_->Delete(PrfPage{.key = 1}.name(), false),
              HasCode(StatusCode::kFailedPrecondition));
  clock_.Advance(seconds(1));
  EXPECT_FALSE(store_->residency().Renew(lease));
  EXPECT_OK(store_->Delete(PrfPage{.key = 1}.name(), false));
}

TEST_F(CoolingTest, PagesLargerThanATierGoToTheNext) {
  Open(kPage, 2 * kPage, 8 * kPage);
  const PrfPage fits_host{.key = 1, .sizes = {5000}}, fits_disk{.key = 2, .sizes = {20000}},
      fits_nowhere{.key = 3, .sizes = {30000}};
  ASSERT_OK(Put(fits_host).status());
  EXPECT_EQ(TierOf(1), TierId::kHost);
  ASSERT_OK(Put(fits_disk).status());
  EXPECT_EQ(TierOf(2), TierId::kDisk);
  EXPECT_EQ(ReadBack(fits_disk), 1u);
  const auto refused = Put(fits_nowhere);
  EXPECT_THAT(refused.status(), HasCode(StatusCode::kResourceExhausted));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("larger than every tier"));
}

TEST_F(CoolingTest, AGpuOutOfMemoryFallsBackToTheHost) {
  Open(4 * kPage, 4 * kPage, 0);
  faults_[0].fail_writes = true;
  PutOk(1);
  EXPECT_EQ(TierOf(1), TierId::kHost);
  EXPECT_EQ(Bytes(TierId::kGpu), 0u);
  faults_[1].fail_writes = true;
  EXPECT_THAT(Put({.key = 2}).status(), HasCode(StatusCode::kResourceExhausted));
  EXPECT_EQ(store_->residency().Usage().pages, 1u);
  faults_[0].fail_writes = false;
  PutOk(2);
  EXPECT_EQ(TierOf(2), TierId::kGpu);
}

TEST_F(CoolingTest, AFailedWriteThroughLeavesNothingBehind) {
  Open(0, 4 * kPage, 4 * kPage);
  faults_[2].fail_writes = true;
  EXPECT_THAT(Put({.key = 1}, Ack::kProcess).status(), HasCode(StatusCode::kResourceExhausted));
  EXPECT_EQ(Segments(1), 0u);
  EXPECT_EQ(store_->residency().Usage().encoded_bytes, 0u);
  EXPECT_EQ(store_->residency().Counters().disk_errors, 2u) << "of the write, and of its removal";
  PutOk(2);  // held in memory only
  EXPECT_THAT(Put({.key = 2}, Ack::kProcess).status(), HasCode(StatusCode::kResourceExhausted))
      << "it is there, but the promise cannot be made";
  EXPECT_EQ(ReadBack({.key = 2}), 3u);
  faults_[2].fail_writes = false;
  EXPECT_EQ(*Put({.key = 2}, Ack::kProcess), PutOutcome::kAlreadyThere);
  Reopen();
  EXPECT_EQ(ReadBack({.key = 2}), 3u);
}

TEST_F(CoolingTest, WhenTheDiskIsFullMemoryGoesOnByForgetting) {
  Open(0, 2 * kPage, 100 * kPage);
  faults_[2].fail_writes = true;
  for (uint64_t key = 1; key <= 6; ++key) {
    PutOk(key);
    clock_.Advance(seconds(1));
  }
  ExpectBudgetsHold();
  EXPECT_EQ(ReadBack({.key = 6}), 3u);
  EXPECT_GT(store_->residency().Counters().dropped_pages, 0u);
  EXPECT_GT(store_->residency().Counters().disk_errors, 0u);
}

TEST_F(CoolingTest, AStrongerAckIsKeptForAPageThatIsThere) {
  Open(0, 4 * kPage, 100 * kPage);
  PutOk(1);
  PutOk(2);
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 0));  // both are on disk now, past the log
  PutOk(3);
  EXPECT_EQ(*Put({.key = 2}, Ack::kDurable), PutOutcome::kAlreadyThere);
  EXPECT_EQ(*Put({.key = 3}, Ack::kDurable), PutOutcome::kAlreadyThere);
  EXPECT_EQ(store_->residency().Find(PrfPage{.key = 3}.name())->ack, Ack::kDurable);
  const int writes = faults_[2].writes;
  EXPECT_EQ(*Put({.key = 3}, Ack::kProcess), PutOutcome::kAlreadyThere);
  EXPECT_EQ(faults_[2].writes, writes) << "nothing is stored twice";
}

TEST_F(CoolingTest, AcksNeedADisk) {
  Open(0, 4 * kPage, 0);
  EXPECT_THAT(Put({.key = 1}, Ack::kProcess).status(), HasCode(StatusCode::kFailedPrecondition));
  EXPECT_OK(store_->Flush()) << "there is nothing to flush to";
}

TEST_F(CoolingTest, FlushWritesWhatIsOnlyInMemory) {
  Open(2 * kPage, 4 * kPage, 100 * kPage);
  for (uint64_t key = 1; key <= 5; ++key) PutOk(key);
  ASSERT_OK(store_->Flush());
  EXPECT_EQ(TierOf(5), TierId::kGpu) << "pages stay where they are";
  Reopen();
  for (uint64_t key = 1; key <= 5; ++key) EXPECT_EQ(ReadBack({.key = key}), 3u) << key;
}

TEST_F(CoolingTest, AHitOnDiskIsPromotedWhereThereIsRoom) {
  options_.eviction_policy = "lru";
  Open(0, 2 * kPage, 100 * kPage);
  PutOk(1, Ack::kProcess);
  Reopen();
  EXPECT_EQ(TierOf(1), TierId::kDisk);
  EXPECT_EQ(ReadBack({.key = 1}), 3u);
  EXPECT_EQ(TierOf(1), TierId::kHost);
  EXPECT_EQ(ReadBack({.key = 1}), 3u);
  clock_.Advance(seconds(1));
  PutOk(2, Ack::kProcess);
  PutOk(3, Ack::kProcess);  // cools page 1: only its copies leave the host
  EXPECT_EQ(TierOf(1), TierId::kDisk);
  EXPECT_EQ(ReadBack({.key = 1}), 3u);
  EXPECT_EQ(TierOf(1), TierId::kDisk) << "no room: nobody is evicted for it";
}

TEST_F(CoolingTest, BetweenTheWatermarksTheSecondUsePromotes) {
  options_.low_watermark = 0.5;
  options_.high_watermark = 1;
  Open(0, 4 * kPage, 100 * kPage);
  for (uint64_t key = 1; key <= 2; ++key) PutOk(key, Ack::kProcess);
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 0));
  for (uint64_t key = 3; key <= 4; ++key) PutOk(key, Ack::kProcess);
  const auto prompt = [&](uint64_t key) {
    const LeaseId lease = Lease(key);
    EXPECT_EQ(ReadBack({.key = key}), 3u);
    EXPECT_EQ(ReadBack({.key = key}), 3u);
    store_->residency().Release(lease);
  };
  prompt(1);
  EXPECT_EQ(TierOf(1), TierId::kDisk) << "one prompt, however often it reads";
  const int writes = faults_[2].writes;
  prompt(1);
  EXPECT_EQ(TierOf(1), TierId::kHost);
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 0));
  EXPECT_EQ(faults_[2].writes, writes) << "it had stayed on disk";
  for (uint64_t key = 5; key <= 6; ++key) PutOk(key);
  prompt(1);
  EXPECT_EQ(TierOf(1), TierId::kDisk) << "its uses count anew";
}

TEST_F(CoolingTest, OldNumbersAreMisses) {
  Open(0, 4 * kPage, 0);
  PutOk(1);
  const PageNumber old = store_->residency().Find(PrfPage{.key = 1}.name())->number;
  ASSERT_OK(store_->Delete(PrfPage{.key = 1}.name(), false));
  ASSERT_OK(Put({.key = 1, .version = 2}).status());
  const std::vector<uint16_t> indices = {0, 99};
  for (const auto& body : store_->Read(PrfPage{.key = 1}.name(), old, indices)) {
    EXPECT_THAT(body.status(), HasCode(StatusCode::kNotFound));
  }
  EXPECT_EQ(ReadBack({.key = 1, .version = 2}), 3u);
}

TEST_F(CoolingTest, TwoPutsOfOneNameAtOnceMakeOnePage) {
  Open(0, 100 * kPage, 0);
  // While the first is between its tier write and publication, the second begins.
  std::thread second;
  absl::StatusOr<PutOutcome> other;
  faults_[1].before_write = [&] {
    if (second.joinable()) return;
    EXPECT_THAT(store_->residency().Find(PrfPage{.key = 1}.name()).status(),
                HasCode(StatusCode::kNotFound))
        << "published before its bytes were there";
    second = std::thread([&] { other = store_->Put(PrfPage{.key = 1, .version = 2}.ToStore()); });
  };
  PutOk(1);
  second.join();
  EXPECT_EQ(*other, PutOutcome::kConflict);
  EXPECT_EQ(ReadBack({.key = 1}), 3u);
}

TEST_F(CoolingTest, AFailedPutLetsTheNextOneThrough) {
  Open(0, 100 * kPage, 0);
  std::thread second;
  absl::StatusOr<PutOutcome> other;
  faults_[1].before_write = [&] {
    if (second.joinable()) return;
    faults_[1].fail_writes = true;  // of the first
    second = std::thread([&] { other = store_->Put(PrfPage{.key = 1, .version = 2}.ToStore()); });
  };
  EXPECT_FALSE(store_->Put(PrfPage{.key = 1}.ToStore()).ok());
  second.join();
  // The second ran after the first had failed, with or without the fault.
  faults_[1].before_write = nullptr;
  faults_[1].fail_writes = false;
  if (other.ok()) {
    EXPECT_EQ(*other, PutOutcome::kStored);
    EXPECT_EQ(ReadBack({.key = 1, .version = 2}), 3u);
  }
  EXPECT_EQ(*Put({.key = 1, .version = 2}),
            other.ok() ? PutOutcome::kAlreadyThere : PutOutcome::kStored);
}

}  // namespace
}  // namespace kvstow
