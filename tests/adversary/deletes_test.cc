// Deletes while the disk refuses writes: what was acknowledged as deleted is gone for good, what
// was not is never served by this process again, and the disk gives it up as soon as it takes
// writes.
#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "tests/fault/faulty_file_system.h"
#include "tests/fault/faulty_segment_files.h"
#include "tests/storage/store/store_fixture.h"

namespace kvstow {
namespace {

using absl::StatusCode;

class DeletesTest : public StoreTest {
 protected:
  DeletesTest() {
    file_system_ = disk_;
    make_files_ = FaultySegmentFilesOf(disk_);
  }
  static PrfPage PageOf(uint64_t key, uint64_t version = 1) {
    return {.key = key, .version = version, .sizes = {60'000, 100}};
  }
  static PrfPage PageIn(SpaceId space, uint64_t key) {
    return {.key = key, .sizes = {20'000, 100}, .space = space};
  }
  bool IsThere(const PrfPage& page) { return store_->residency().Find(page.name()).ok(); }
  absl::Status Delete(const PrfPage& page, bool force = false) {
    return store_->Delete(page.name(), force);
  }
  void Refuse(bool refuse) { disk_->log_errors_one_in = refuse ? 1 : 0; }
  // As after kill -9: nothing more reaches the disk.
  void Kill() {
    disk_->write_errors_one_in = 1;
    store_.reset();
    disk_->write_errors_one_in = disk_->log_errors_one_in = 0;
    disk_->syncs_of_bodies_fail = disk_->syncs_of_logs_fail = false;
    Reopen();
  }
  void SetColdForm(const PrfPage& cold) {
    store_->cooling().SetMakeColdForm(
        [cold](const PageName&, const SharedBytes&, std::span<const SharedBytes>) {
          return std::optional<ColdForm>(cold.ToColdForm());
        });
  }
  void SaveSpaces(SpaceId last) {
    for (SpaceId id = 2; id <= last; ++id) {
      ASSERT_OK(store_->SaveSpace({.id = id, .bytes = SharedBytes::Take(std::string("more"))}));
    }
  }
  bool Recovered(SpaceId id) {
    const std::vector<SpaceRecord> spaces = store_->recovered_spaces();
    return std::any_of(spaces.begin(), spaces.end(),
                       [&](const SpaceRecord& space) { return space.id == id; });
  }

  const std::shared_ptr<FaultyFileSystem> disk_ = std::make_shared<FaultyFileSystem>(2026);
};

TEST_F(DeletesTest, ARefusedDeleteIsNotAcknowledgedAndNotUndone) {
  Open(0, 4 << 20, 64 << 20);
  ASSERT_OK(Put(PageOf(1), Ack::kDurable).status());
  ASSERT_OK(Put(PageOf(2), Ack::kDurable).status());
  const uint64_t both = Bytes(TierId::kDisk);

  Refuse(true);
  EXPECT_THAT(Delete(PageOf(1)), HasCode(StatusCode::kUnavailable));
  EXPECT_FALSE(IsThere(PageOf(1)));
  EXPECT_EQ(Bytes(TierId::kDisk), both) << "its blocks are in the budget until they are free";
  EXPECT_THAT(Delete(PageOf(1)), HasCode(StatusCode::kUnavailable));
  store_->cooling().RunDemotion();
  EXPECT_EQ(Bytes(TierId::kDisk), both);

  Refuse(false);
  ASSERT_OK(Put(PageOf(3), Ack::kDurable).status());
  EXPECT_FALSE(IsThere(PageOf(1)));
  store_->cooling().RunDemotion();
  EXPECT_EQ(Bytes(TierId::kDisk), both) << "of the second and the third";
  EXPECT_THAT(Delete(PageOf(1)), HasCode(StatusCode::kNotFound));
  Kill();
  EXPECT_FALSE(IsThere(PageOf(1)));
  EXPECT_EQ(ReadBack(PageOf(2)), 2u);
  EXPECT_EQ(ReadBack(PageOf(3)), 2u);
}

// No call but a write comes between.
TEST_F(DeletesTest, TheNextWriteDoesNotBringItBack) {
  Open(0, 0, 64 << 20);
  ASSERT_OK(Put(PageOf(1), Ack::kDurable).status());
  Refuse(true);
  Delete(PageOf(1)).IgnoreError();
  Refuse(false);
  ASSERT_OK(Put(PageOf(2), Ack::kDurable).status());
  Kill();
  EXPECT_FALSE(IsThere(PageOf(1)));
  EXPECT_EQ(ReadBack(PageOf(2)), 2u);
}

TEST_F(DeletesTest, APutOfTheSameNameIsNotHarmed) {
  Open(0, 4 << 20, 64 << 20);
  for (const Ack ack : {Ack::kMemory, Ack::kDurable}) {
    const uint64_t key = ack == Ack::kMemory ? 1 : 2;
    ASSERT_OK(Put(PageOf(key), Ack::kDurable).status());
    Refuse(true);
    EXPECT_THAT(Delete(PageOf(key)), HasCode(StatusCode::kUnavailable));
    Refuse(ack == Ack::kMemory);
    EXPECT_EQ(*Put(PageOf(key, 2), ack), PutOutcome::kStored);
    EXPECT_EQ(ReadBack(PageOf(key, 2)), 2u);
    Refuse(false);
    store_->cooling().RunDemotion();
    EXPECT_EQ(*Put(PageOf(key, 2), Ack::kDurable), PutOutcome::kAlreadyThere);
  }
  Kill();
  for (const uint64_t key : {1, 2}) {
    EXPECT_EQ(ReadBack(PageOf(key, 2)), 2u);
    ASSERT_OK(Delete(PageOf(key, 2)));
  }
  Kill();
  EXPECT_EQ(store_->residency().Usage().pages, 0u) << "nor is there an older one behind it";
  EXPECT_EQ(Bytes(TierId::kDisk), 0u);
}

// The older one is still to be erased: the name is not free of it.
TEST_F(DeletesTest, ADeleteIsNotAcknowledgedBeforeOlderPagesOfItsNameAreGone) {
  Open(0, 4 << 20, 64 << 20);
  ASSERT_OK(Put(PageOf(1), Ack::kDurable).status());
  Refuse(true);
  EXPECT_THAT(Delete(PageOf(1)), HasCode(StatusCode::kUnavailable));
  ASSERT_OK(Put(PageOf(1, 2)).status());
  EXPECT_THAT(Delete(PageOf(1, 2)), HasCode(StatusCode::kUnavailable)) << "it was in memory alone";
  Refuse(false);
  EXPECT_THAT(Delete(PageOf(1, 2)), HasCode(StatusCode::kNotFound));
  Kill();
  EXPECT_EQ(store_->residency().Usage().pages, 0u);
}

// The hot form stays on disk until the cold one is synced: for good, once a sync has failed.
TEST_F(DeletesTest, WhatWaitsForASyncKeepsNoOtherWaiting) {
  Open(0, 4 << 20, 64 << 20);
  SaveSpaces(2);
  const PrfPage hot{.key = 1, .sizes = {60'000}, .hot = true};
  const PrfPage cold{.key = 1, .version = 2, .sizes = {100}};
  SetColdForm(cold);
  ASSERT_OK(Put(PageOf(2), Ack::kDurable).status());
  ASSERT_OK(Put(PageIn(2, 3), Ack::kDurable).status());
  ASSERT_OK(Put(hot, Ack::kProcess).status());
  disk_->syncs_of_bodies_fail = true;
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, Bytes(TierId::kHost) - 1));
  ASSERT_FALSE(store_->residency().Find(hot.name())->hot);

  EXPECT_OK(Delete(PageOf(2)));
  EXPECT_OK(store_->DropSpace(2));
  EXPECT_THAT(Delete(cold), HasCode(StatusCode::kUnavailable)) << "its hot form is on disk";
  Kill();
  EXPECT_FALSE(IsThere(PageOf(2)));
  EXPECT_FALSE(Recovered(2));
  EXPECT_TRUE(store_->residency().Pages(2).empty());
}

// The refused page is in the log, and comes back after kill -9 unless it is erased, too.
TEST_F(DeletesTest, ADeleteTakesARefusedPutOfItsNameAlong) {
  Open(0, 4 << 20, 64 << 20);
  disk_->syncs_of_logs_fail = true;
  EXPECT_THAT(Put(PageOf(1), Ack::kDurable).status(), HasCode(StatusCode::kUnavailable));
  ASSERT_OK(Put(PageOf(1)).status());
  ASSERT_OK(Put(PageOf(2)).status());
  EXPECT_OK(Delete(PageOf(2))) << "nothing of it may be on disk";
  EXPECT_THAT(Delete(PageOf(1)), HasCode(StatusCode::kUnavailable));
  EXPECT_FALSE(IsThere(PageOf(1)));
  disk_->syncs_of_logs_fail = false;
  EXPECT_THAT(Delete(PageOf(1)), HasCode(StatusCode::kNotFound));
  Kill();
  EXPECT_EQ(store_->residency().Usage().pages, 0u);
}

// The same for a page that could not be written when it was there already: it then gives way to
// others, or to its cold form, before one of its name is deleted.
TEST_F(DeletesTest, ADeleteTakesARefusedCopyOfItsNameAlong) {
  for (const bool hot : {false, true}) {
    SCOPED_TRACE(hot ? "hot" : "evicted");
    Open(0, 4 << 20, 64 << 20);
    const PrfPage page{.key = hot ? 2u : 1u, .sizes = {60'000}, .hot = hot};
    const PrfPage cold{.key = page.key, .version = 2, .sizes = {100}};
    SetColdForm(cold);
    ASSERT_OK(Put(page).status());
    disk_->syncs_of_logs_fail = true;
    EXPECT_THAT(Put(page, Ack::kDurable).status(), HasCode(StatusCode::kUnavailable));
    ASSERT_OK(store_->cooling().Shrink(TierId::kHost, hot ? 10'000 : 0));
    ASSERT_EQ(IsThere(page), hot);
    if (!hot) {
      ASSERT_OK(Put(page).status());
    }
    const absl::Status deleted = Delete(page);
    EXPECT_THAT(deleted, HasCode(StatusCode::kUnavailable));
    disk_->syncs_of_logs_fail = false;
    EXPECT_THAT(Delete(page), HasCode(StatusCode::kNotFound));
    Kill();
    EXPECT_EQ(store_->residency().Usage().pages, 0u);
  }
}

// Deletes, puts and kills while the log fails now and then.
TEST_F(DeletesTest, AcknowledgedDeletesAreNeverUndone) {
  std::mt19937_64 random(7);
  Open(0, 1 << 20, 64 << 20);
  std::set<uint64_t> gone;
  uint64_t key = 0, refused = 0;
  for (int round = 0; round < 8; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    std::vector<uint64_t> put, asked;
    for (int i = 0; i < 20; ++i) {
      ASSERT_OK(store_->Put(PageOf(++key).ToStore(Ack::kDurable)).status());
      put.push_back(key);
    }
    disk_->log_errors_one_in = 3;
    for (const uint64_t k : put) {
      store_->Put(PageOf(++key).ToStore(Ack::kProcess)).IgnoreError();
      const absl::Status deleted = Delete(PageOf(k));
      EXPECT_FALSE(IsThere(PageOf(k)));
      if (deleted.ok()) gone.insert(k);
      if (!deleted.ok()) asked.push_back(k);
    }
    refused += asked.size();
    if (round % 2 == 0) {
      Refuse(false);
      store_->cooling().RunDemotion();
      gone.insert(asked.begin(), asked.end());
    }
    Kill();
    for (const uint64_t k : gone) EXPECT_FALSE(IsThere(PageOf(k))) << k;
    EXPECT_EQ(store_->residency().Counters().damaged_records, 0u);
  }
  EXPECT_GT(refused, 10u);
  EXPECT_GT(gone.size(), 60u);
}

TEST_F(DeletesTest, ASpaceIsDroppedUnderFaults) {
  Open(0, 4 << 20, 64 << 20);
  SaveSpaces(2);
  for (uint64_t key = 1; key <= 5; ++key) {
    ASSERT_OK(Put(PageIn(1, key), Ack::kDurable).status());
    ASSERT_OK(Put(PageIn(2, key), key < 4 ? Ack::kDurable : Ack::kMemory).status());
  }
  const std::string leased = PageIn(2, 1).name().key;
  const absl::string_view keys[] = {leased};
  ASSERT_NE(store_->residency().Lookup(2, keys, true).lease, 0u);
  ASSERT_OK(store_->residency().Pin(PageIn(2, 2).name(), true));

  Refuse(true);
  const absl::Status dropped = store_->DropSpace(2);
  EXPECT_THAT(dropped, HasCode(StatusCode::kUnavailable));
  EXPECT_TRUE(store_->residency().Pages(2).empty());
  EXPECT_THAT(Put(PageIn(2, 9)).status(), HasCode(StatusCode::kFailedPrecondition));
  EXPECT_THAT(store_->SaveSpace({.id = 2, .bytes = SharedBytes::Take(std::string("more"))}),
              HasCode(StatusCode::kFailedPrecondition));
  Refuse(false);
  ASSERT_OK(Put(PageIn(1, 6), Ack::kDurable).status());
  store_->cooling().RunDemotion();
  Kill();
  EXPECT_FALSE(Recovered(2));
  EXPECT_TRUE(store_->residency().Pages(2).empty());
  EXPECT_EQ(store_->residency().NewSpaceId(), 3u);
  for (uint64_t key = 1; key <= 6; ++key) EXPECT_EQ(ReadBack(PageIn(1, key)), 2u);
  EXPECT_EQ(Bytes(TierId::kDisk), store_->residency().Usage(1).tiers[2].encoded_bytes);
  EXPECT_EQ(store_->residency().Counters().damaged_records, 0u);
}

// Wherever the power goes: the space with some pages fewer, or no space, and never pages alone.
TEST_F(DeletesTest, APowerCutInADropLeavesNoPagesWithoutTheirSpace) {
  Open(0, 0, 64 << 20);
  size_t kept = 0, dropped = 0;
  for (SpaceId space = 2; space <= 31; ++space) {
    SCOPED_TRACE(absl::StrCat("space ", space));
    ASSERT_OK(store_->SaveSpace({.id = space, .bytes = SharedBytes::Take(std::string("one"))}));
    for (uint64_t key = 1; key <= 5; ++key) {
      ASSERT_OK(Put(PageIn(space, key), Ack::kDurable).status());
    }
    disk_->CutPowerAfter(1 + space % 15);
    const bool acked = store_->DropSpace(space).ok();
    disk_->CutPower();
    store_.reset();
    disk_->PowerOn();
    Reopen();
    EXPECT_EQ(store_->residency().Counters().damaged_records, 0u) << "pages without their space";
    (Recovered(space) ? kept : dropped) += 1;
    if (acked) {
      EXPECT_FALSE(Recovered(space));
    }
    if (!Recovered(space)) {
      EXPECT_TRUE(store_->residency().Pages(space).empty());
    }
    for (uint64_t key = 1; key <= 5; ++key) {
      if (IsThere(PageIn(space, key))) {
        EXPECT_EQ(ReadBack(PageIn(space, key)), 2u);
      }
    }
  }
  EXPECT_GT(kept, 0u);
  EXPECT_GT(dropped, 0u);
}

}  // namespace
}  // namespace kvstow
