// What the database does when the disk refuses to read or to sync.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "storage/disk/rocks_tier.h"
#include "tests/fault/faulty_file_system.h"
#include "tests/fault/faulty_segment_files.h"
#include "tests/storage/prf_page.h"
#include "tests/storage/status_matchers.h"
#include "tests/storage/temp_dir.h"
#include "tests/storage/test_keys.h"

namespace kvstow {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

// Pages have a body in a segment file and a small one.
class RocksDatabaseTest : public testing::Test {
 protected:
  absl::Status TryToOpen() {
    store_.reset();
    auto store = OpenRocksStore({.path = folder_.path(),
                                 .budget_bytes = 64 << 20,
                                 .file_system = disk_,
                                 .keys = keys_,
                                 .make_files = FaultySegmentFilesOf(disk_)});
    if (store.ok()) store_ = *std::move(store);
    return store.status();
  }
  void Open() { ASSERT_OK(TryToOpen()); }
  // Leaves the files as kill -9 does: closing cannot sync.
  void Kill() {
    disk_->write_errors_one_in = 1;
    store_.reset();
    disk_->write_errors_one_in = 0;
  }
  void LosePower() {
    disk_->worst_order = true;  // the log stays
    disk_->CutPower();
    store_.reset();
    disk_->PowerOn();
  }
  static PrfPage PageOf(uint64_t number) { return {.key = number, .sizes = {8000, 100}}; }
  absl::Status Put(uint64_t number, Ack ack) {
    const PageToStore page = PageOf(number).ToStore();
    const PageRecord record{.number = number,
                            .name = page.name,
                            .header = page.header,
                            .raw_digest = page.raw_digest,
                            .facts = page.facts};
    std::vector<SegmentBody> bodies;
    for (uint16_t i = 0; i < page.bodies.size(); ++i) {
      bodies.push_back({{number, i}, page.bodies[i]});
    }
    return store_->catalog->PutPage(record, bodies, ack);
  }
  // Returns the first error of the page's bodies.
  absl::Status Read(uint64_t number) {
    const PageToStore page = PageOf(number).ToStore();
    std::vector<ExpectedSegment> expected;
    for (uint16_t i = 0; i < page.facts.size(); ++i) {
      expected.push_back({{number, i}, page.name.space, page.facts[i]});
    }
    absl::Status status;
    for (const auto& body : store_->tier->Read(expected)) status.Update(body.status());
    return status;
  }
  size_t Records() { return store_->catalog->Load()->pages.size(); }

  const TempDir folder_;
  const std::shared_ptr<DataKeys> keys_ = KeysOfRun();
  const std::shared_ptr<FaultyFileSystem> disk_ = std::make_shared<FaultyFileSystem>(1);
  std::optional<RocksStore> store_;
};

TEST_F(RocksDatabaseTest, AFailedWriteLeavesWhatCouldNotBeRead) {
  Open();
  ASSERT_OK(Put(1, Ack::kDurable));
  Open();  // from here on the page is in tables
  disk_->read_errors_one_in = 1;
  disk_->log_errors_one_in = 1;
  EXPECT_THAT(Put(1, Ack::kProcess), HasCode(StatusCode::kUnavailable));
  disk_->read_errors_one_in = 0;
  disk_->log_errors_one_in = 0;
  ASSERT_OK(store_->catalog->Sync());
  EXPECT_OK(Read(1));
}

TEST_F(RocksDatabaseTest, ARemovalNeedsNotReadWhatWasThere) {
  Open();
  ASSERT_OK(Put(1, Ack::kDurable));
  Open();
  disk_->read_errors_one_in = 1;
  EXPECT_OK(store_->catalog->ErasePage(1, 2));
  disk_->read_errors_one_in = 0;
  EXPECT_THAT(Read(1), HasCode(StatusCode::kNotFound));
}

TEST_F(RocksDatabaseTest, RecoveryReadsAgainWhatCouldNotBeRead) {
  for (const uint64_t pass : {0, 1}) {  // the header of the file, and the body
    SCOPED_TRACE(pass);
    Open();
    ASSERT_OK(Put(1, Ack::kProcess));
    Kill();
    disk_->FailReadsOfBodies(pass, 1);
    Open();
    EXPECT_OK(Read(1));
    EXPECT_EQ(Records(), 1u);
  }
}

TEST_F(RocksDatabaseTest, RecoveryForgetsNothingThatCannotBeRead) {
  for (const uint64_t pass : {0, 1}) {
    SCOPED_TRACE(pass);
    Open();
    ASSERT_OK(Put(1, Ack::kProcess));
    Kill();
    disk_->FailReadsOfBodies(pass, 1000);
    const absl::Status opened = TryToOpen();
    disk_->FailReadsOfBodies(0, 0);
    EXPECT_THAT(opened, HasCode(StatusCode::kUnavailable));
    EXPECT_THAT(std::string(opened.message()), HasSubstr("start again"));
    Open();
    EXPECT_OK(Read(1));
    EXPECT_EQ(Records(), 1u);
  }
}

TEST_F(RocksDatabaseTest, DoesNotOpenWhenRecoveryCannotSync) {
  Open();
  ASSERT_OK(Put(1, Ack::kProcess));
  Kill();
  disk_->syncs_of_bodies_fail = true;
  const absl::Status opened = TryToOpen();
  disk_->syncs_of_bodies_fail = false;
  EXPECT_THAT(opened, HasCode(StatusCode::kUnavailable));
  EXPECT_THAT(std::string(opened.message()), HasSubstr("start again"));
  Open();
  LosePower();  // what was recovered counts as DURABLE
  Open();
  EXPECT_OK(Read(1));
  EXPECT_EQ(Records(), 1u);
}

TEST_F(RocksDatabaseTest, AFailedSyncOfBodiesIsNotBelievedLater) {
  Open();
  ASSERT_OK(Put(1, Ack::kDurable));
  ASSERT_OK(Put(2, Ack::kProcess));
  disk_->syncs_of_bodies_fail = true;
  EXPECT_THAT(store_->catalog->Sync(), HasCode(StatusCode::kUnavailable));
  disk_->syncs_of_bodies_fail = false;
  EXPECT_THAT(store_->catalog->Sync(), HasCode(StatusCode::kUnavailable));
  EXPECT_THAT(Put(3, Ack::kDurable), HasCode(StatusCode::kUnavailable));
  EXPECT_THAT(Put(3, Ack::kProcess), HasCode(StatusCode::kUnavailable));
  EXPECT_OK(Read(2)) << "reads go on";
  LosePower();
  Open();
  EXPECT_OK(Read(1));
  EXPECT_THAT(Read(2), HasCode(StatusCode::kNotFound));
  EXPECT_EQ(Records(), 1u) << "no record without its bodies";
}

TEST_F(RocksDatabaseTest, ARestartWritesAgainWhatASyncFailedFor) {
  Open();
  ASSERT_OK(Put(1, Ack::kProcess));
  disk_->syncs_of_bodies_fail = true;
  EXPECT_THAT(store_->catalog->Sync(), HasCode(StatusCode::kUnavailable));
  disk_->syncs_of_bodies_fail = false;
  Kill();
  Open();
  EXPECT_OK(Put(2, Ack::kDurable));
  LosePower();
  Open();
  EXPECT_OK(Read(1));
  EXPECT_OK(Read(2));
}

}  // namespace
}  // namespace kvstow
