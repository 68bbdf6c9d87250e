// What the storage tests share: self-describing pages, and a store over real or faulty parts.
#ifndef KVSTOW_TESTS_STORAGE_STORE_STORE_FIXTURE_H_
#define KVSTOW_TESTS_STORAGE_STORE_STORE_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "kernels/device/device.h"
#include "storage/disk/rocks_tier.h"
#include "storage/store/tiered_store.h"
#include "storage/tiers/memory_tier.h"
#include "storage/tiers/noop_tier.h"
#include "tests/storage/prf_page.h"
#include "tests/storage/status_matchers.h"
#include "tests/storage/temp_dir.h"
#include "tests/storage/test_keys.h"

namespace kvstow {

// A store that tests drive by hand: its clock stands still, nothing happens in the background.
class StoreTest : public testing::Test {
 protected:
  static constexpr uint64_t kKiB = 1024;

  // Budgets of 0 leave a tier out. The "GPU" is host memory too.
  void Open(uint64_t gpu, uint64_t host, uint64_t disk) {
    options_.budget_bytes = {gpu, host, disk};
    Reopen();
  }
  void Reopen() {
    OpenStore();
    ASSERT_OK(SaveSpace());
  }
  // After damage the id of a space whose record was hit is refused, so that no page of the old
  // space is ever taken for one of the new.
  void ReopenDamaged() {
    OpenStore();
    EXPECT_THAT(SaveSpace(), testing::AnyOf(HasCode(absl::StatusCode::kOk),
                                            HasCode(absl::StatusCode::kFailedPrecondition)));
  }
  void OpenStore() {
    store_.reset();
    TieredStoreParts parts;
    if (options_.budget_bytes[0] > 0) parts.tiers[0] = MakeMemoryTier(HostDevice());
    if (options_.budget_bytes[1] > 0) parts.tiers[1] = MakeMemoryTier(HostDevice());
    if (options_.budget_bytes[2] > 0) {
      auto disk = OpenRocksStore({.path = dir_.path(),
                                  .budget_bytes = options_.budget_bytes[2],
                                  .file_system = file_system_,
                                  .keys = keys_,
                                  .make_files = make_files_});
      ASSERT_OK(disk.status());
      parts.tiers[2] = std::move(disk->tier);
      parts.catalog = std::move(disk->catalog);
    }
    Wrap(parts);
    options_.clock = &clock_;
    options_.background = false;
    auto store = TieredStore::Open(options_, std::move(parts));
    ASSERT_OK(store.status());
    store_ = *std::move(store);
  }
  absl::Status SaveSpace() {
    return store_->SaveSpace({.id = 1, .bytes = SharedBytes::Take(std::string("space"))});
  }
  // Puts faults between the store and its tiers.
  virtual void Wrap(TieredStoreParts&) {}

  void TearDown() override {
    if (store_ != nullptr) {
      EXPECT_OK(store_->residency().CheckInvariants());
    }
  }

  absl::StatusOr<PutOutcome> Put(const PrfPage& page, Ack ack = Ack::kMemory) {
    auto outcome = store_->Put(page.ToStore(ack));
    EXPECT_OK(store_->residency().CheckInvariants());
    return outcome;
  }
  // Over the page, as a prompt that reaches it takes one.
  LeaseId Lease(uint64_t key) {
    const std::string name = PrfPage{.key = key}.name().key;
    const absl::string_view keys[] = {name};
    return store_->residency().Lookup(1, keys, true).lease;
  }
  // Reads all segments that the store says it has, checks that the bytes are this very page's, and
  // answers how many there were; 0 for a miss.
  size_t ReadBack(const PrfPage& page) {
    const size_t good = ReadUnchecked(page);
    EXPECT_OK(store_->residency().CheckInvariants());
    return good;
  }
  // The same for many pages: counting everything after each would take long.
  size_t ReadUnchecked(const PrfPage& page) {
    const auto facts = store_->residency().Find(page.name());
    if (!facts.ok()) return 0;
    std::vector<uint16_t> indices(facts->segments.size());
    std::iota(indices.begin(), indices.end(), 0);
    const auto bodies = store_->Read(page.name(), facts->number, indices);
    size_t good = 0;
    for (size_t i = 0; i < bodies.size() && bodies[i].ok(); ++i) {
      EXPECT_EQ(page.WhatIs(i, bodies[i]->span()), "") << "segment " << i;
      ++good;
    }
    return good;
  }
  void ExpectSumsAndBudgets() {
    ASSERT_OK(store_->residency().CheckInvariants());
    const StoreUsage usage = store_->residency().Usage();
    for (int t = 0; t < kTiers; ++t) {
      EXPECT_LE(usage.tiers[t].encoded_bytes, usage.tiers[t].budget_bytes) << t;
    }
  }
  uint64_t Bytes(TierId t) {
    return store_->residency().Usage().tiers[static_cast<size_t>(t)].encoded_bytes;
  }
  size_t PagesIn(TierId t) {
    return store_->residency().Usage().tiers[static_cast<size_t>(t)].pages;
  }

  TempDir dir_;
  std::shared_ptr<DataKeys> keys_ = KeysOfRun();
  std::shared_ptr<rocksdb::FileSystem> file_system_;  // null = the real one
  decltype(RocksOptions::make_files) make_files_ = MakePosixSegmentFiles;
  ManualClock clock_;
  TieredStoreOptions options_;
  std::unique_ptr<TieredStore> store_;
};

}  // namespace kvstow

#endif  // KVSTOW_TESTS_STORAGE_STORE_STORE_FIXTURE_H_
