// What a TieredStore is made of and how it behaves: settings, parts, and the function that makes
// cold forms.
//
// Values.
#ifndef KVSTOW_STORAGE_STORE_STORE_OPTIONS_H_
#define KVSTOW_STORAGE_STORE_STORE_OPTIONS_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/shared_bytes.h"
#include "storage/catalog.h"
#include "storage/segment.h"
#include "storage/store/lease_table.h"
#include "storage/store/page_facts.h"
#include "storage/tier.h"

namespace kvstow {

struct TieredStoreOptions {
  std::array<uint64_t, kTiers> budget_bytes{};  // 0 = the tier is not used
  // Of a value with 16 raw bits, and in proportion of others: what a page keeps that cools into the
  // tier; 0 = all. Not of the GPU, into which nothing cools, and the disk's not above the host's.
  std::array<double, kTiers> target_bits{};
  double high_watermark = 0.95;            // of a budget: demotion starts
  double low_watermark = 0.90;             // of a budget: demotion ends
  std::string eviction_policy = "kvstow";  // what goes first: one of EvictionPolicies()
  Duration lease_ttl = std::chrono::seconds(10);
  LeaseTable::Limits lease_limits;
  // Memory that the index may take for all pages, of all tiers (StoreUsage::index_bytes); 0 = any.
  // Beyond it whole pages are forgotten, as the eviction policy chooses, before one is put.
  uint64_t index_bytes = 0;
  // For Lookup; called under the store's lock, about once in the life of a page.
  CountLevels count_levels = [](std::span<const uint8_t>, size_t) -> uint8_t { return 0; };
  const Clock* clock = &Clock::Real();
  // False: nothing happens in the background; tests call RunDemotion() themselves.
  bool background = true;
};

// Makes the cold form of a page from header and bodies of its hot one; nothing when it has none.
// Called by any thread, without a lock, and must not call the store.
using MakeColdForm = std::function<std::optional<ColdForm>(
    const PageName& name, const SharedBytes& header, std::span<const SharedBytes> bodies)>;

// The parts a store is made of. An absent tier is a NoopTier, an absent catalog a NoopCatalog.
struct TieredStoreParts {
  std::array<std::unique_ptr<Tier>, kTiers> tiers;
  std::unique_ptr<Catalog> catalog;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_STORE_OPTIONS_H_
