// Copies that are damaged or lost: found, never read twice, never carried on.
#include "tests/storage/store/cooling_fixture.h"

namespace kvstow {
namespace {

using absl::StatusCode;
using DamageTest = CoolingTest;

// A reader that checks for itself gets what lies in memory as it is; what lies on disk is checked.
TEST_F(DamageTest, AReaderMayCheckForItselfWhatLiesInMemory) {
  Open(0, 4 * kPage, 100 * kPage);
  PutOk(1);
  faults_[1].damage_reads = true;
  const PageFacts facts = *store_->residency().Find(PrfPage{.key = 1}.name());
  const uint16_t base = 0;
  const auto read = [&](Checks checks) {
    return store_->Read(PrfPage{.key = 1}.name(), facts.number, {&base, 1}, checks)[0];
  };
  const auto as_it_is = read(Checks::kReader);
  ASSERT_OK(as_it_is.status());
  EXPECT_NE(Xxh3(as_it_is->span()), facts.segments[0].digest);
  EXPECT_EQ(store_->residency().Counters().corrupt_segments, 0u);
  EXPECT_FALSE(read(Checks::kStore).ok()) << "told of it, the store looks, and drops it";
  EXPECT_GT(store_->residency().Counters().corrupt_segments, 0u);

  PutOk(2, Ack::kProcess);
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 0));
  faults_[1].damage_reads = false;
  faults_[2].damage_reads = true;
  const PageFacts on_disk = *store_->residency().Find(PrfPage{.key = 2}.name());
  EXPECT_FALSE(
      store_->Read(PrfPage{.key = 2}.name(), on_disk.number, {&base, 1}, Checks::kReader)[0].ok());
}

TEST_F(DamageTest, ADamagedCopyIsNeverReadTwice) {
  Open(0, 4 * kPage, 100 * kPage);
  PutOk(1, Ack::kProcess);
  PutOk(2);
  faults_[1].damage_reads = true;
  EXPECT_EQ(ReadBack({.key = 1}), 3u) << "the copy on disk is good";
  EXPECT_EQ(TierOf(1), TierId::kDisk);
  EXPECT_EQ(ReadBack({.key = 2}), 0u);
  EXPECT_EQ(Segments(2), 0u);
  EXPECT_EQ(store_->residency().Counters().corrupt_segments, 6u);
  faults_[1].damage_reads = false;
  EXPECT_EQ(ReadBack({.key = 1}), 3u);
  PutOk(2);
  EXPECT_EQ(ReadBack({.key = 2}), 3u) << "it can be put again";
}

TEST_F(DamageTest, ALostBodyIsAMissADumbDiskIsNot) {
  Open(0, 0, 100 * kPage);
  PutOk(1, Ack::kProcess);
  faults_[2].fail_reads = true;
  const auto facts = *store_->residency().Find(PrfPage{.key = 1}.name());
  const uint16_t base = 0;
  EXPECT_THAT(store_->Read(PrfPage{.key = 1}.name(), facts.number, {&base, 1})[0].status(),
              HasCode(StatusCode::kUnavailable));
  EXPECT_EQ(Segments(1), 3u) << "it may well be there";
  faults_[2].fail_reads = false;
  faults_[2].lose_reads = true;
  EXPECT_EQ(ReadBack({.key = 1}), 0u);
  EXPECT_EQ(Segments(1), 0u);
  EXPECT_EQ(store_->residency().Counters().lost_segments, 3u);
}

TEST_F(DamageTest, DamageFoundWhileCoolingIsNotCarriedOn) {
  Open(0, 4 * kPage, 100 * kPage);
  PutOk(1);
  faults_[1].damage_reads = true;
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 0));
  EXPECT_EQ(Segments(1), 0u);
  EXPECT_EQ(Bytes(TierId::kDisk), 0u);
  EXPECT_GT(store_->residency().Counters().corrupt_segments, 0u);
}

TEST_F(DamageTest, OfADamagedPageTheGoodPartIsCarriedOn) {
  for (const TierId from : {TierId::kGpu, TierId::kHost}) {
    Open(from == TierId::kGpu ? 4 * kPage : 0, 4 * kPage, 100 * kPage);
    Faults& faults = faults_[static_cast<size_t>(from)];
    faults.damage_reads = true;
    for (const int damaged : {0, 1, 2}) {
      PutOk(1);
      faults.damage_only = damaged;
      ASSERT_OK(store_->cooling().Shrink(from, 0));
      EXPECT_EQ(Segments(1), static_cast<size_t>(damaged));
      if (damaged > 0) {
        EXPECT_GT(TierOf(1), from);
      }
      EXPECT_EQ(ReadBack({.key = 1}), static_cast<size_t>(damaged));
      store_->Delete(PrfPage{.key = 1}.name(), true).IgnoreError();  // gone already for 0
    }
  }
}

}  // namespace
}  // namespace kvstow
