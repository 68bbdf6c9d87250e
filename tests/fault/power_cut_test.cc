// Power cuts in the middle of puts of every ack, deletes, demotion and cold
// forms: no wrong byte, no page that was acknowledged as DURABLE is lost, and
// of those acknowledged as PROCESS the ones that are lost are the last ones.
#include <atomic>
#include <filesystem>
#include <random>
#include <set>
#include <thread>

#include "tests/fault/crash_pages.h"
#include "tests/fault/faulty_file_system.h"
#include "tests/fault/faulty_segment_files.h"
#include "tests/storage/number_from_env.h"
#include "tests/storage/store/store_fixture.h"

namespace kvstow {
namespace {

class PowerCut : public StoreTest {
 protected:
  struct Acked {
    uint64_t key;
    Ack ack;
    size_t began;  // how many acks there were when this put began
  };

  virtual PrfPage PageOf(uint64_t key) const { return CrashPage(key); }
  void SetCold() {
    store_->cooling().SetMakeColdForm([](const PageName& name, const SharedBytes&,
                                         std::span<const SharedBytes>) -> std::optional<ColdForm> {
      return CrashColdPage(std::stoull(name.key.substr(4))).ToColdForm();
    });
  }
  size_t Began() {
    MutexLock lock(mu_);
    return acked_.size();
  }
  // Puts, now and then the same page again with a stronger ack, and deletes,
  // until the power goes.
  void Write(uint64_t first_key, uint64_t seed) {
    std::mt19937_64 random(seed);
    for (uint64_t key = first_key;; ++key) {
      const uint64_t dice = random() % 64;
      Ack ack = dice == 0 ? Ack::kDurable : dice < 48 ? Ack::kProcess : Ack::kMemory;
      size_t began = Began();
      absl::Status put = store_->Put(CrashPage(key).ToStore(ack)).status();
      if (put.ok() && dice > 60) {
        ack = random() % 2 == 0 ? Ack::kProcess : Ack::kDurable;
        began = Began();
        put = store_->Put(CrashPage(key).ToStore(ack)).status();
      }
      if (!put.ok()) return;
      {
        MutexLock lock(mu_);
        if (ack != Ack::kMemory) acked_.push_back({key, ack, began});
        if (dice < 5 && key > first_key) deleted_.insert(key - 1);
      }
      if (dice < 5 && key > first_key) {
        store_->Delete(CrashPage(key - 1).name(), true).IgnoreError();
      }
    }
  }
  void RunUntilTheCut(uint64_t seed, uint64_t cycle) {
    std::vector<std::thread> writers;
    for (uint64_t t = 0; t < 2; ++t) {
      writers.emplace_back([this, seed, cycle, t] {
        Write((1 + cycle * 2 + t) * 1'000'000, seed * 1000 + cycle * 2 + t);
      });
    }
    std::atomic<bool> done = false;
    std::thread demoter([&] {
      while (!done) store_->cooling().RunDemotion();
    });
    for (std::thread& writer : writers) writer.join();
    done = true;
    demoter.join();
  }
  // The form in which the page is there, whole; "" = it is not there.
  std::string FormOf(uint64_t key) {
    PrfPage page = PageOf(key);
    const auto facts = store_->residency().Find(page.name());
    if (!facts.ok()) return "";
    const PrfPage cold = CrashColdPage(key);
    const bool is_cold = AsString(facts->header.span()) == AsString(cold.ToStore().header.span());
    if (is_cold) page = cold;
    EXPECT_EQ(ReadUnchecked(page), page.sizes.size()) << "key " << key;
    return is_cold ? "cold" : "as it was put";
  }
  bool IsThere(uint64_t key) { return !FormOf(key).empty(); }
  void Check() {
    EXPECT_EQ(store_->residency().Counters().damaged_records, 0u);
    size_t began = 0;  // of the last put that survived
    std::string survivor = "none";
    std::vector<bool> there;
    for (const Acked& put : acked_) {
      const std::string form = FormOf(put.key);
      there.push_back(!form.empty());
      if (form.empty() || put.ack != Ack::kProcess || put.began < began) continue;
      began = put.began;
      survivor = absl::StrCat("key ", put.key, ", ", form);
    }
    for (size_t i = 0; i < acked_.size(); ++i) {
      const Acked& put = acked_[i];
      if (there[i] || deleted_.contains(put.key)) continue;
      EXPECT_NE(put.ack, Ack::kDurable) << "key " << put.key << " was acknowledged as DURABLE";
      EXPECT_GE(i, began) << "key " << put.key << " is lost, and a later one is not: " << survivor;
    }
    for (const uint64_t key : survivors_) {
      EXPECT_TRUE(IsThere(key) || deleted_.contains(key)) << key << " was there after a restart";
    }
    survivors_.clear();
    acked_.clear();
    for (const PageName& name : store_->residency().Pages(1)) {
      const uint64_t key = std::stoull(name.key.substr(4));
      if (IsThere(key)) survivors_.push_back(key);
    }
    EXPECT_EQ(store_->residency().Counters().corrupt_segments +
                  store_->residency().Counters().lost_segments,
              0u);
    EXPECT_OK(store_->residency().CheckInvariants());
  }

  Mutex mu_;
  std::vector<Acked> acked_;
  std::set<uint64_t> deleted_;
  std::vector<uint64_t> survivors_;
};

class PowerCutTest : public PowerCut, public testing::WithParamInterface<uint64_t> {};

using PowerCutTruncation = StoreTest;

TEST_P(PowerCutTest, DurableSurvivesAndProcessHasNoHoles) {
  constexpr uint64_t kCuts = 5;
  const auto disk = std::make_shared<FaultyFileSystem>(GetParam());
  disk->sync_millis = 3;
  file_system_ = disk;
  make_files_ = FaultySegmentFilesOf(disk);
  std::mt19937_64 random(GetParam());
  // The smallest write buffers, so that logs and tables are exchanged often;
  // room for all.
  options_.budget_bytes = {0, 1 << 20, 256 << 20};
  Reopen();
  for (uint64_t cycle = 0; cycle < kCuts; ++cycle) {
    SetCold();
    // Half of the cuts come soon after a log was begun: the end of the one
    // before is at risk.
    if (random() % 2 == 0) {
      disk->CutPowerAfter(1 + random() % 3000);
    } else {
      disk->CutPowerAfterNewLog(1 + random() % 40);
    }
    disk->worst_order = random() % 2 == 0;
    RunUntilTheCut(GetParam(), cycle);
    store_.reset();
    disk->PowerOn();
    SCOPED_TRACE(absl::StrCat("seed ", GetParam(), ", cut ", cycle));
    Reopen();
    Check();
    if (HasFailure()) return;
  }
  EXPECT_FALSE(survivors_.empty());
}

class PowerCutOrder : public PowerCut {
 protected:
  // One small body each: all of it is in the log. Those of hot pages fill the
  // write buffer, so the cold form of one is often the first in a new log.
  PrfPage PageOf(uint64_t key) const override {
    const bool hot = key % 2 == 0;
    return {.key = key, .sizes = {hot ? 3900u : 100u}, .hot = hot};
  }
  bool PutNext() {
    const bool put = store_->Put(PageOf(++key_).ToStore(Ack::kProcess)).ok();
    if (put) acked_.push_back({key_, Ack::kProcess, acked_.size()});
    return put;
  }
  uint64_t key_ = 0;
};

// A cold form is written without an acknowledgement, and makes a page be there
// all the same. Power goes when it is among the first records of a log, and
// that log alone reaches the disk.
TEST_F(PowerCutOrder, AColdFormIsNotThereWithoutThePagesBeforeIt) {
  const auto disk = std::make_shared<FaultyFileSystem>(1);
  file_system_ = disk;
  disk->worst_order = true;
  disk->sync_millis = 3;  // records are written while RocksDB syncs the log before
  options_.budget_bytes = {0, 1 << 20, 256 << 20};  // the smallest write buffers
  Reopen();
  for (uint64_t cut = 0; cut < NumberFromEnv("KVSTOW_POWER_CUTS", 10); ++cut) {
    SCOPED_TRACE(absl::StrCat("cut ", cut));
    SetCold();
    disk->CutPowerAfterNewLog(2 + cut % 5);
    while (PutNext()) {
      if (PageOf(key_).hot) store_->cooling().Shrink(TierId::kHost, 0).IgnoreError();
    }
    store_.reset();
    disk->PowerOn();
    Reopen();
    Check();
    if (HasFailure()) return;
  }
  EXPECT_FALSE(survivors_.empty());
}

// A page that was cut: what is left of it comes back with its bodies.
TEST_F(PowerCutTruncation, LeavesNoRecordWithoutBodies) {
  const auto disk = std::make_shared<FaultyFileSystem>(1);
  file_system_ = disk;
  make_files_ = FaultySegmentFilesOf(disk);
  Open(0, 64 * kKiB, 64 * kKiB);
  const PrfPage page{.key = 1, .sizes = {8000, 8000, 8000}};
  ASSERT_OK(Put(page).status());
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 0));
  ASSERT_OK(store_->cooling().Shrink(TierId::kDisk, 17'000));
  ASSERT_EQ(ReadBack(page), 2u);
  const PrfPage synced{.key = 2, .sizes = {1000}};
  ASSERT_OK(Put(synced, Ack::kDurable).status());
  disk->CutPower();
  store_.reset();
  disk->PowerOn();
  Reopen();
  EXPECT_EQ(ReadBack(synced), 1u);
  EXPECT_EQ(ReadBack(page), 2u) << "the durable one was acknowledged after it";
  EXPECT_EQ(store_->residency().Counters().lost_segments, 0u);
}

class FirstOpenTest : public StoreTest {
 protected:
  // Opens the store and puts the page, as far as the power lasts.
  bool OpenAndPut(const PrfPage& page) {
    auto disk = OpenRocksStore({.path = dir_.path(),
                                .budget_bytes = options_.budget_bytes[2],
                                .file_system = file_system_,
                                .keys = keys_,
                                .make_files = make_files_});
    if (!disk.ok()) return false;
    TieredStoreParts parts;
    parts.tiers[2] = std::move(disk->tier);
    parts.catalog = std::move(disk->catalog);
    options_.background = false;
    auto store = TieredStore::Open(options_, std::move(parts));
    if (!store.ok()) return false;
    store_ = *std::move(store);
    return SaveSpace().ok() && store_->Put(page.ToStore(Ack::kDurable)).ok();
  }
};

// The power goes before every write of the first open and the first put, and at
// last behind them.
TEST_F(FirstOpenTest, DurablePagesComeBackWhereverItWasCut) {
  options_.budget_bytes = {0, 0, 64 << 20};
  const PrfPage page{.key = 1, .sizes = {20'000, 100}}, next{.key = 2};
  bool acked = false;
  for (uint64_t writes = 1; !acked && !HasFailure(); ++writes) {
    SCOPED_TRACE(absl::StrCat("cut before write ", writes));
    const auto disk = std::make_shared<FaultyFileSystem>(writes);
    file_system_ = disk;
    make_files_ = FaultySegmentFilesOf(disk);
    disk->CutPowerAfter(writes);
    acked = OpenAndPut(page);
    disk->CutPower();
    store_.reset();
    disk->LoseWhatIsUnknown(dir_.path());
    disk->PowerOn();
    if (std::filesystem::exists(dir_.path() + "/db/CURRENT")) {
      EXPECT_EQ(std::filesystem::file_size(dir_.path() + "/db/FORMAT"), 18u) << "it was synced";
    }
    Reopen();
    const size_t there = ReadBack(page);
    EXPECT_TRUE(there == 2 || (there == 0 && !acked)) << there << " segments";
    ASSERT_OK(Put(next, Ack::kDurable).status());
    Reopen();
    EXPECT_EQ(ReadBack(next), 3u);
    store_.reset();
    for (const auto& it : std::filesystem::directory_iterator(dir_.path())) {
      EXPECT_EQ(it.path().filename(), "db") << "nothing is set aside";
      std::filesystem::remove_all(it.path());
    }
  }
}

const uint64_t kSeeds = NumberFromEnv("KVSTOW_POWER_CUT_SEEDS", 10);
INSTANTIATE_TEST_SUITE_P(Seeds, PowerCutTest, testing::Range<uint64_t>(1, 1 + kSeeds));

}  // namespace
}  // namespace kvstow
