// A disk that is full, slow, or fails now and then: reads go on, memory is not held up, nothing
// that was acknowledged is lost, and no wrong byte comes back.
#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "tests/fault/faulty_file_system.h"
#include "tests/fault/faulty_segment_files.h"
#include "tests/storage/store/store_fixture.h"

namespace kvstow {
namespace {

using absl::StatusCode;

class FaultyDiskTest : public StoreTest {
 protected:
  FaultyDiskTest() {
    file_system_ = disk_;
    make_files_ = FaultySegmentFilesOf(disk_);
  }
  static PrfPage PageOf(uint64_t key) { return {.key = key, .sizes = {60'000, 40'000}}; }

  const std::shared_ptr<FaultyFileSystem> disk_ = std::make_shared<FaultyFileSystem>(2026);
};

TEST_F(FaultyDiskTest, FullThenRoomAgain) {
  Open(0, 4 << 20, 64 << 20);
  disk_->space_bytes = 16 << 20;
  absl::Status refused;
  uint64_t key = 0;
  while (refused.ok() && key < 1000) {
    refused = store_->Put(PageOf(++key).ToStore(Ack::kProcess)).status();
  }
  EXPECT_THAT(refused, HasCode(StatusCode::kResourceExhausted));
  EXPECT_GT(key, 50u);
  // How long a refusal takes, in milliseconds; tests promise no times, docs/RELIABILITY.md does.
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; ++i) {
    EXPECT_THAT(store_->Put(PageOf(key).ToStore(Ack::kProcess)).status(),
                HasCode(StatusCode::kResourceExhausted));
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  RecordProperty("refusal_ms", std::to_string(took.count() / 10));
  for (uint64_t k = 1; k < key; ++k) EXPECT_EQ(ReadUnchecked(PageOf(k)), 2u) << k;
  EXPECT_OK(store_->Put(PageOf(2000).ToStore()).status()) << "memory does not need the disk";

  disk_->space_bytes = uint64_t{1} << 40;
  // RocksDB looks for free space every few seconds.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  absl::Status again = refused;
  while (!again.ok() && std::chrono::steady_clock::now() < deadline) {
    again = store_->Put(PageOf(key).ToStore(Ack::kProcess)).status();
  }
  ASSERT_OK(again) << "writing did not resume";
  Reopen();
  for (uint64_t k = 1; k <= key; ++k) EXPECT_EQ(ReadUnchecked(PageOf(k)), 2u) << k;
}

// Others took all of the disk, so that RocksDB cannot write either, not even its log.
TEST_F(FaultyDiskTest, NothingLeftForTheLogAndFlushesMeanwhile) {
  Open(0, 4 << 20, 64 << 20);
  uint64_t key = 0;
  for (int round = 0; round < 2; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    std::vector<uint64_t> acked;
    for (int i = 0; i < 20; ++i) {
      ASSERT_OK(
          store_->Put(PageOf(++key).ToStore(i % 2 == 0 ? Ack::kDurable : Ack::kProcess)).status());
      acked.push_back(key);
    }
    disk_->space_bytes = disk_->used_bytes();
    size_t refused = 0;
    for (int i = 0; i < 200; ++i) {
      const auto ack = static_cast<Ack>(i % 3);
      const auto put = store_->Put(PageOf(++key).ToStore(ack));
      if (put.ok() && ack != Ack::kMemory) acked.push_back(key);
      if (!put.ok()) ++refused;
      if (i % 20 == 7) refused += store_->Flush().ok() ? 0 : 1;
    }
    EXPECT_GT(refused, 0u);
    for (const uint64_t k : acked) EXPECT_EQ(ReadUnchecked(PageOf(k)), 2u) << k;
    store_->Delete(PageOf(acked.front()).name(), true).IgnoreError();
    acked.erase(acked.begin());

    disk_->space_bytes = uint64_t{1} << 40;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    absl::Status again;
    do {
      again = store_->Put(PageOf(++key).ToStore(Ack::kDurable)).status();
    } while (!again.ok() && std::chrono::steady_clock::now() < deadline);
    ASSERT_OK(again) << "writing did not resume";
    acked.push_back(key);
    ASSERT_OK(store_->Flush());
    if (round == 0) Reopen();
    for (const uint64_t k : acked) EXPECT_EQ(ReadUnchecked(PageOf(k)), 2u) << k;
    EXPECT_EQ(store_->residency().Counters().corrupt_segments +
                  store_->residency().Counters().lost_segments,
              0u);
    for (uint64_t k = 1; k <= key; ++k) store_->Delete(PageOf(k).name(), true).IgnoreError();
  }
}

TEST_F(FaultyDiskTest, AStalledDiskDoesNotHoldUpMemory) {
  Open(0, 4 << 20, 64 << 20);
  ASSERT_OK(Put(PageOf(1)).status());
  ASSERT_OK(store_->Flush());
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 0));
  ASSERT_OK(Put(PageOf(2)).status());

  disk_->StallReads(true);
  std::thread reader([&] { EXPECT_EQ(ReadUnchecked(PageOf(1)), 2u); });
  disk_->WaitForStalled();
  EXPECT_EQ(ReadUnchecked(PageOf(2)), 2u) << "a hit in memory";
  EXPECT_OK(store_->Put(PageOf(3).ToStore()).status());
  disk_->StallReads(false);
  reader.join();

  disk_->StallWrites(true);
  std::thread writer([&] { EXPECT_OK(store_->Put(PageOf(4).ToStore(Ack::kDurable)).status()); });
  disk_->WaitForStalled();
  EXPECT_EQ(ReadUnchecked(PageOf(3)), 2u);
  EXPECT_OK(store_->Put(PageOf(5).ToStore()).status());
  EXPECT_EQ(store_->residency().Find(PageOf(4).name()).status().code(), StatusCode::kNotFound)
      << "not before it is on disk";
  disk_->StallWrites(false);
  writer.join();
  EXPECT_EQ(ReadUnchecked(PageOf(4)), 2u);
}

TEST_F(FaultyDiskTest, NowAndThenAWriteFails) {
  std::mt19937_64 random(1);
  std::vector<uint64_t> acked;
  Open(0, 1 << 20, 64 << 20);
  uint64_t key = 0, failed = 0;
  for (int round = 0; round < 10; ++round) {
    disk_->write_errors_one_in = 40;
    for (int i = 0; i < 60; ++i) {
      const auto ack = static_cast<Ack>(random() % 3);
      const bool put = store_->Put(PageOf(++key).ToStore(ack)).ok();
      failed += put ? 0 : 1;
      if (put && ack != Ack::kMemory) acked.push_back(key);
      ReadUnchecked(PageOf(1 + random() % key));
    }
    disk_->write_errors_one_in = 0;
    Reopen();
    for (const uint64_t k : acked) EXPECT_EQ(ReadUnchecked(PageOf(k)), 2u) << k;
    EXPECT_OK(store_->residency().CheckInvariants());
  }
  EXPECT_GT(failed, 0u);
  EXPECT_GT(acked.size(), 50u);
}

// Writers and demotion of pages that are all over, while the log fails now and then: what was
// acknowledged stays, what was refused leaves the page as it was, and writing goes on by itself.
TEST_F(FaultyDiskTest, NowAndThenTheLogFails) {
  Open(0, 1 << 20, 256 << 20);
  constexpr uint64_t kWriters = 4, kPages = 40;
  std::atomic<uint64_t> failed = 0;
  std::vector<std::vector<uint64_t>> acked(kWriters);
  disk_->sync_millis = 1;
  for (int round = 0; round < 5; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    disk_->log_errors_one_in = 30;
    std::vector<std::thread> writers;
    for (uint64_t w = 0; w < kWriters; ++w) {
      writers.emplace_back([&, w] {
        std::mt19937_64 random(w + 1);
        for (uint64_t i = 0; i < kPages; ++i) {
          const uint64_t key = (w * 100 + round) * 1000 + i;
          const auto ack = static_cast<Ack>(1 + random() % 2);
          bool put = store_->Put(PageOf(key).ToStore(ack)).ok();
          failed += put ? 0 : 1;
          if (random() % 3 == 0) put |= store_->Put(PageOf(key).ToStore(Ack::kDurable)).ok();
          if (put) acked[w].push_back(key);
        }
      });
    }
    for (std::thread& writer : writers) writer.join();
    disk_->log_errors_one_in = 0;
    EXPECT_OK(store_->Put(PageOf(9'999'000 + round).ToStore(Ack::kDurable)).status())
        << "writing goes on";
    if (round % 2 == 0) Reopen();
    for (const auto& keys : acked) {
      for (const uint64_t key : keys) EXPECT_EQ(ReadUnchecked(PageOf(key)), 2u) << key;
    }
    EXPECT_EQ(store_->residency().Counters().corrupt_segments +
                  store_->residency().Counters().lost_segments,
              0u);
    EXPECT_OK(store_->residency().CheckInvariants());
  }
  EXPECT_GT(failed, 20u);
}

TEST_F(FaultyDiskTest, ReadsThatLie) {
  Open(0, 0, 64 << 20);
  for (uint64_t key = 1; key <= 200; ++key) ASSERT_OK(store_->Put(PageOf(key).ToStore()).status());
  ASSERT_OK(store_->Flush());
  // Where bodies are is known before: RocksDB checks that itself when it opens.
  for (uint64_t key = 1; key <= 200; ++key) EXPECT_EQ(ReadUnchecked(PageOf(key)), 2u);
  disk_->flips_one_in = 5;
  size_t good = 0;
  for (uint64_t key = 1; key <= 200; ++key) good += ReadUnchecked(PageOf(key));
  disk_->flips_one_in = 0;
  EXPECT_LT(good, 400u);
  EXPECT_GT(good, 200u);
  EXPECT_GT(disk_->flips(), 20u);
  EXPECT_GT(store_->residency().Counters().corrupt_segments, 0u);
}

}  // namespace
}  // namespace kvstow
