// The settings of a TieredStore. Values.
#ifndef KVSTOW_STORAGE_STORE_RESIDENCY_STORE_OPTIONS_H_
#define KVSTOW_STORAGE_STORE_RESIDENCY_STORE_OPTIONS_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/clock.h"
#include "storage/segment.h"
#include "storage/store/residency/lease_table.h"
#include "storage/store/residency/page_facts.h"
#include "storage/store/residency/store_observer.h"
#include "storage/store/residency/tenant_share.h"

namespace kvstow {

struct TieredStoreOptions {
  std::array<uint64_t, kTiers> budget_bytes{};  // 0 = the tier is not used
  // The bits of a value that stay when a page cools into the tier, for values with 16 raw bits,
  // and in proportion for others; 0 = all. The GPU has no target, because nothing cools into it.
  // The disk's target is not above the host's.
  std::array<double, kTiers> target_bits{};
  double high_watermark = 0.95;            // of a budget: demotion starts
  double low_watermark = 0.90;             // of a budget: demotion ends
  std::string eviction_policy = "kvstow";  // chooses the victims: one of EvictionPolicies()
  Duration lease_ttl = std::chrono::seconds(10);
  LeaseTable::Limits lease_limits;
  // Memory that the index may take for all pages, of all tiers (StoreUsage::index_bytes); 0 = any.
  // Beyond it the store forgets whole pages before a put, as the eviction policy chooses.
  uint64_t index_bytes = 0;
  // Counts whole levels for Lookup. Called under the store's lock, about once in the life of a
  // page.
  CountLevels count_levels = [](std::span<const uint8_t>, size_t) -> uint8_t { return 0; };
  const Clock* clock = &Clock::Real();
  StoreObserver* observer =
      &NoStoreObserver();  // is told which pages come and go; outlives the store
  // Returns the number of the tenant that a SpaceRecord names. Asked when the store opens, and when
  // a space is saved.
  std::function<TenantId(const std::string& tenant)> tenant_of = [](const std::string&) {
    return kOnlyTenant;
  };
  // When this is false, nothing happens in the background; tests call RunDemotion() themselves.
  bool background = true;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_RESIDENCY_STORE_OPTIONS_H_
