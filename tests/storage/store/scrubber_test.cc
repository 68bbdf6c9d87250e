// Verification in the background: it finds damage in every tier, mends what it can, and is no use
// of a page.
#include "storage/store/scrubber.h"

#include "tests/storage/store/store_fixture.h"
#include "tests/storage/tiers/faulty_tier.h"

namespace kvstow {
namespace {

class ScrubberTest : public StoreTest {
 protected:
  void Wrap(TieredStoreParts& parts) override {
    for (int t = 1; t < kTiers; ++t) {
      parts.tiers[t] = std::make_unique<FaultyTier>(std::move(parts.tiers[t]), faults_[t]);
    }
    parts.catalog = std::make_unique<FaultyCatalog>(std::move(parts.catalog), faults_[2]);
  }
  uint64_t ScrubAll() {
    uint64_t bytes = 0;
    for (const PageRef& page : store_->residency().PageRefs()) bytes += store_->Scrub(page);
    return bytes;
  }

  const PrfPage first_{.key = 1}, second_{.key = 2};
  std::array<Faults, kTiers> faults_;
};

TEST_F(ScrubberTest, ReadsEveryCopyAndChangesNothing) {
  Open(0, 64 * kKiB, 1 << 20);
  ASSERT_OK(Put(first_, Ack::kProcess).status());
  clock_.Advance(std::chrono::seconds(1));
  ASSERT_OK(Put(second_).status());
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 4000));
  const StoreUsage before = store_->residency().Usage();
  clock_.Advance(std::chrono::seconds(1));
  const uint64_t bytes = ScrubAll();
  EXPECT_GE(bytes, 6000u);
  EXPECT_EQ(store_->residency().Counters().scrubbed_bytes, bytes);
  EXPECT_EQ(store_->residency().Usage(), before) << "nothing was promoted";
  EXPECT_EQ(store_->residency().Counters().corrupt_segments +
                store_->residency().Counters().lost_segments,
            0u);
  EXPECT_EQ(store_->Scrub({.item = 1, .number = 999}), 0u) << "there is no such page";
}

TEST_F(ScrubberTest, DamageOfTheLastCopyDropsThePage) {
  Open(0, 0, 1 << 20);
  ASSERT_OK(Put(first_).status());
  faults_[2].damage_reads = true;
  faults_[2].damage_only = 1;
  ScrubAll();
  faults_[2].damage_reads = false;
  EXPECT_EQ(store_->residency().Counters().corrupt_segments, 1u);
  EXPECT_EQ(ReadBack(first_), 1u) << "what is before it stays";
  EXPECT_EQ(store_->residency().Counters().corrupt_segments, 1u);
}

TEST_F(ScrubberTest, ADamagedCopyOnDiskIsWrittenAgain) {
  Open(0, 64 * kKiB, 1 << 20);
  ASSERT_OK(Put(first_, Ack::kDurable).status());
  const int writes = faults_[2].writes;
  faults_[2].damage_reads = true;
  ScrubAll();
  faults_[2].damage_reads = false;
  EXPECT_EQ(store_->residency().Counters().corrupt_segments, 3u);
  EXPECT_EQ(faults_[2].writes, writes + 1);
  EXPECT_EQ(ReadBack(first_), 3u);
  Reopen();
  EXPECT_EQ(ReadBack(first_), 3u);
}

// Memory is not to drop a good copy for a bad one on disk.
TEST_F(ScrubberTest, ADamagedCopyThatCannotBeWrittenAgainIsNone) {
  for (const int bad : {-1, 1}) {
    SCOPED_TRACE(bad);
    Open(0, 64 * kKiB, 1 << 20);
    const PrfPage page{.key = static_cast<uint64_t>(bad + 2)};
    ASSERT_OK(Put(page, Ack::kDurable).status());
    faults_[2].damage_only = bad;
    faults_[2].damage_reads = faults_[2].fail_writes = true;
    ScrubAll();
    faults_[2].damage_reads = faults_[2].fail_writes = false;
    const int writes = faults_[2].writes;
    EXPECT_EQ(ReadBack(page), 3u);
    ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 0));
    EXPECT_GT(faults_[2].writes, writes) << "what is on disk counts as a copy";
    EXPECT_EQ(ReadBack(page), 3u);
    Reopen();
    EXPECT_EQ(ReadBack(page), 3u);
    ASSERT_OK(store_->Delete(page.name(), false));
  }
}

TEST_F(ScrubberTest, ADamagedCopyInMemoryGoes) {
  Open(0, 64 * kKiB, 1 << 20);
  ASSERT_OK(Put(first_, Ack::kProcess).status());
  faults_[1].damage_reads = true;
  ScrubAll();
  faults_[1].damage_reads = false;
  EXPECT_EQ(store_->residency().Counters().corrupt_segments, 3u);
  EXPECT_EQ(Bytes(TierId::kHost), 0u);
  EXPECT_EQ(ReadBack(first_), 3u);
}

TEST_F(ScrubberTest, ExamineDropsBadCopiesAndKeepsThePage) {
  Open(0, 64 * kKiB, 1 << 20);
  ASSERT_OK(Put(first_, Ack::kDurable).status());
  const PageNumber number = store_->residency().Find(first_.name())->number;
  for (const TierId bad : {TierId::kDisk, TierId::kHost}) {
    Faults& faults = faults_[static_cast<size_t>(bad)];
    faults.damage_reads = true;
    EXPECT_OK(store_->Examine(first_.name(), number));
    faults.damage_reads = false;
    EXPECT_EQ(ReadBack(first_), 3u) << TierName(bad);
  }
  EXPECT_EQ(store_->residency().Counters().corrupt_segments, 6u);
  EXPECT_EQ(store_->residency().Counters().scrubbed_bytes, 0u) << "that is the scrubber's";
}

TEST_F(ScrubberTest, ExamineDropsAPageWithoutAGoodBase) {
  Open(0, 64 * kKiB, 1 << 20);
  ASSERT_OK(Put(first_, Ack::kDurable).status());
  const LeaseId lease = Lease(1);
  const PageNumber number = store_->residency().Find(first_.name())->number;
  faults_[1].damage_reads = faults_[2].damage_reads = true;
  EXPECT_THAT(store_->Examine(first_.name(), number), HasCode(absl::StatusCode::kNotFound));
  EXPECT_FALSE(store_->residency().Find(first_.name()).ok());
  EXPECT_TRUE(store_->residency().Release(lease));
}

// Found bad by its number, when the name has another page already.
TEST_F(ScrubberTest, ExamineAndDropLeaveAnotherNumberAlone) {
  Open(0, 64 * kKiB, 1 << 20);
  ASSERT_OK(Put(first_, Ack::kDurable).status());
  const PageNumber old = store_->residency().Find(first_.name())->number;
  ASSERT_OK(store_->Delete(first_.name(), false));
  ASSERT_OK(Put(first_, Ack::kDurable).status());
  for (const bool leased : {false, true}) {
    EXPECT_TRUE(!leased || Lease(1) != 0);
    faults_[1].damage_reads = faults_[2].damage_reads = true;
    EXPECT_THAT(store_->Examine(first_.name(), old), HasCode(absl::StatusCode::kNotFound));
    EXPECT_THAT(store_->Drop(first_.name(), old), HasCode(absl::StatusCode::kNotFound));
    faults_[1].damage_reads = faults_[2].damage_reads = false;
    EXPECT_EQ(ReadBack(first_), 3u);
  }
  EXPECT_OK(store_->Drop(first_.name(), store_->residency().Find(first_.name())->number));
  EXPECT_FALSE(store_->residency().Find(first_.name()).ok());
  EXPECT_EQ(store_->residency().Counters().dropped_pages, 1u);
}

TEST_F(ScrubberTest, AThreadOfItsOwnFindsIt) {
  Open(0, 0, 1 << 20);
  ASSERT_OK(Put(first_).status());
  { const Scrubber off(*store_, 0); }
  EXPECT_EQ(store_->residency().Counters().scrubbed_bytes, 0u);
  faults_[2].damage_reads = true;
  const Scrubber scrubber(*store_, 1 << 30);
  while (store_->residency().Find(first_.name()).ok()) std::this_thread::yield();
  EXPECT_GE(store_->residency().Counters().corrupt_segments, 1u);
}

}  // namespace
}  // namespace kvstow
