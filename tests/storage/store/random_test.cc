// Many threads, every call, all tiers, restarts: bytes are right or missing, sums are exact,
// budgets hold.
#include <atomic>
#include <random>
#include <thread>

#include "tests/storage/disk/fake_disk.h"
#include "tests/storage/store/hot_pages.h"
#include "tests/storage/store/store_fixture.h"
#include "tests/storage/tiers/faulty_tier.h"

namespace kvstow {
namespace {

constexpr uint64_t kKeys = 60, kVersions = 3;
constexpr HotPages kPages{.least = 500, .step = 900, .cold = 200};

class RandomTest : public StoreTest, public testing::WithParamInterface<bool> {
 protected:
  static PrfPage PageOf(uint64_t key, uint64_t version) { return kPages.Page(key, version); }
  void SetColdForms() { store_->cooling().SetColdForms(kPages.Batches(4)); }
  // The parameter: RocksDB, or a disk that is all instrumented code.
  void Wrap(TieredStoreParts& parts) override {
    if (!GetParam()) {
      parts.tiers[2] = fake_disk_.NewTier();
      parts.catalog = fake_disk_.NewCatalog();
    }
    for (int t = 0; t < kTiers; ++t) {
      parts.tiers[t] = std::make_unique<FaultyTier>(std::move(parts.tiers[t]), faults_[t]);
    }
  }

  // Finds the page, says which version it is, and checks every byte that comes back.
  void ReadAndCheck(uint64_t key) {
    const PageName name = PageOf(key, 1).name();
    const auto facts = store_->residency().Find(name);
    if (!facts.ok()) return;
    for (uint64_t version = 1; version <= kVersions; ++version) {
      if (facts->raw_digest != PageOf(key, version).raw_digest()) continue;
      const PrfPage page = kPages.Form(key, version, facts->header);
      std::vector<uint16_t> indices(facts->segments.size());
      std::iota(indices.begin(), indices.end(), 0);
      const auto bodies = store_->Read(name, facts->number, indices);
      for (size_t i = 0; i < bodies.size(); ++i) {
        if (!bodies[i].ok()) continue;
        ++good_;
        const std::string wrong = page.WhatIs(i, bodies[i]->span());
        if (!wrong.empty()) ADD_FAILURE() << wrong;
      }
      return;
    }
    ADD_FAILURE() << "key " << key << " has a digest of no version";
  }
  void Step(std::mt19937_64& random) {
    const uint64_t key = 1 + random() % kKeys;
    const PrfPage page = PageOf(key, 1 + random() % kVersions);
    switch (random() % 16) {
      case 0:
      case 1:
      case 2:
      case 3: {
        const auto put = store_->Put(page.ToStore(static_cast<Ack>(random() % 8 == 0)));
        if (!put.ok()) ++refused_;
        break;
      }
      case 4: {
        std::vector<std::string> keys;
        for (uint64_t k = key; k < key + 4; ++k) keys.push_back(PageOf(k, 1).name().key);
        const PrefixMatch match = store_->residency().Lookup(1, Views(keys), true);
        if (random() % 4 != 0) store_->residency().Release(match.lease);
        if (random() % 4 == 0) store_->residency().Renew(match.lease);
        break;
      }
      case 5:
        store_->Delete(page.name(), random() % 2 == 0).IgnoreError();
        break;
      case 6:
        store_->residency().Pin(page.name(), random() % 4 == 0).IgnoreError();
        break;
      case 7:
        if (random() % 8 == 0) {
          store_->cooling()
              .Shrink(static_cast<TierId>(random() % 3), random() % 100'000)
              .IgnoreError();
        }
        clock_.Advance(std::chrono::milliseconds(200));
        break;
      case 8:
        ExpectSumsAndBudgets();
        break;
      case 9:
        faults_[random() % 2].damage_reads = random() % 8 == 0;
        faults_[random() % 2].fail_writes = random() % 8 == 0;
        break;
      default:
        ReadAndCheck(key);
    }
  }

  FakeDisk fake_disk_;
  std::array<Faults, kTiers> faults_;
  std::atomic<uint64_t> good_{0}, refused_{0};
};

TEST_P(RandomTest, BytesAreRightOrMissing) {
  if (GetParam() && kUnderTsan) GTEST_SKIP() << "RocksDB is not instrumented; the fake disk is";
  constexpr int kThreads = 4, kRounds = 3, kSteps = 800;
  constexpr uint64_t seed = 2026;
  Open(30 * kKiB, 60 * kKiB, 150 * kKiB);
  SetColdForms();
  uint64_t cooled = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(seed + round * kThreads + t);
        for (int step = 0; step < kSteps; ++step) Step(random);
      });
    }
    // The background's work, at full speed.
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) store_->cooling().RunDemotion();
    });
    for (std::thread& thread : threads) thread.join();
    for (Faults& faults : faults_) faults.damage_reads = faults.fail_writes = false;
    ExpectSumsAndBudgets();
    for (uint64_t key = 1; key <= kKeys; ++key) ReadAndCheck(key);
    cooled += store_->residency().Counters().cooled_pages;
    Reopen();
    SetColdForms();
    ExpectSumsAndBudgets();
    for (uint64_t key = 1; key <= kKeys; ++key) ReadAndCheck(key);
    EXPECT_EQ(store_->residency().Counters().corrupt_segments, 0u);
    EXPECT_EQ(store_->residency().Counters().lost_segments, 0u)
        << "records without bodies were recovered";
  }
  EXPECT_GT(good_, 1000u);
  EXPECT_GT(cooled, 10u);
}

INSTANTIATE_TEST_SUITE_P(Disks, RandomTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "rocks" : "fake"; });

}  // namespace
}  // namespace kvstow
