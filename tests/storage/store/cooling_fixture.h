// What the tests of cooling share: a store whose tiers fail and lie when they are told to.
#ifndef KVSTOW_TESTS_STORAGE_STORE_COOLING_FIXTURE_H_
#define KVSTOW_TESTS_STORAGE_STORE_COOLING_FIXTURE_H_

#include <array>
#include <memory>
#include <utility>

#include "tests/storage/store/store_fixture.h"
#include "tests/storage/tiers/faulty_tier.h"

namespace kvstow {

class CoolingTest : public StoreTest {
 protected:
  // One page takes about 3 KiB.
  static constexpr uint64_t kPage = 3013;

  void Wrap(TieredStoreParts& parts) override {
    for (int t = 0; t < 2; ++t) {
      if (parts.tiers[t] == nullptr) continue;
      parts.tiers[t] = std::make_unique<FaultyTier>(std::move(parts.tiers[t]), faults_[t]);
    }
    if (parts.tiers[2] == nullptr) return;
    parts.tiers[2] = std::make_unique<FaultyTier>(std::move(parts.tiers[2]), faults_[2]);
    parts.catalog = std::make_unique<FaultyCatalog>(std::move(parts.catalog), faults_[2]);
  }
  void PutOk(uint64_t key, Ack ack = Ack::kMemory) {
    ASSERT_OK(Put({.key = key}, ack).status()) << "key " << key;
  }
  // Segments that are there, from RAM alone; 0 = a miss.
  size_t Segments(uint64_t key) {
    const auto facts = store_->residency().Find(PrfPage{.key = key}.name());
    return facts.ok() ? facts->segments.size() : 0;
  }
  TierId TierOf(uint64_t key, size_t segment = 0) {
    return store_->residency().Find(PrfPage{.key = key}.name())->tiers[segment];
  }
  void Use(uint64_t key) { store_->residency().Use(PrfPage{.key = key}.name()); }
  void ExpectBudgetsHold() {
    const StoreUsage usage = store_->residency().Usage();
    for (const TierUsage& tier : usage.tiers) EXPECT_LE(tier.encoded_bytes, tier.budget_bytes);
  }

  std::array<Faults, kTiers> faults_;
};

}  // namespace kvstow

#endif  // KVSTOW_TESTS_STORAGE_STORE_COOLING_FIXTURE_H_
