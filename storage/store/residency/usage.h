// The contents and the counters of a store. Values.
#ifndef KVSTOW_STORAGE_STORE_RESIDENCY_USAGE_H_
#define KVSTOW_STORAGE_STORE_RESIDENCY_USAGE_H_

#include <array>
#include <cstdint>

#include "storage/segment.h"

namespace kvstow {

struct TierUsage {
  uint64_t budget_bytes = 0;
  // Bodies, and the header with each copy of a page's base. For all spaces together, the disk also
  // counts pages that are forgotten and still to be erased there.
  uint64_t encoded_bytes = 0;
  uint64_t raw_bytes = 0;  // of pages whose base is (hottest) here
  uint64_t pages = 0;      // pages whose base is (hottest) here
  uint64_t segments = 0;
  bool operator==(const TierUsage&) const = default;
};

struct StoreUsage {
  std::array<TierUsage, kTiers> tiers;
  uint64_t pages = 0, raw_bytes = 0, encoded_bytes = 0;  // each page counted once
  uint64_t leases = 0, leased_pages = 0, pinned_pages = 0;
  uint64_t index_bytes = 0;  // memory that the index takes for them, about
  // Adds what pages take; `sign` is 1 or -1, wrapped around.
  void Add(const StoreUsage& of_pages, uint64_t sign);
  bool operator==(const StoreUsage&) const = default;
};

inline void StoreUsage::Add(const StoreUsage& of_pages, uint64_t sign) {
  for (int t = 0; t < kTiers; ++t) {
    tiers[t].encoded_bytes += sign * of_pages.tiers[t].encoded_bytes;
    tiers[t].raw_bytes += sign * of_pages.tiers[t].raw_bytes;
    tiers[t].pages += sign * of_pages.tiers[t].pages;
    tiers[t].segments += sign * of_pages.tiers[t].segments;
  }
  pages += sign * of_pages.pages;
  raw_bytes += sign * of_pages.raw_bytes;
  encoded_bytes += sign * of_pages.encoded_bytes;
  pinned_pages += sign * of_pages.pinned_pages;
  index_bytes += sign * of_pages.index_bytes;
}

// Counters since start; monotonic.
struct StoreCounters {
  uint64_t puts = 0, already_there = 0, conflicts = 0;
  uint64_t demoted_bytes = 0, dropped_segments = 0, dropped_pages = 0;
  uint64_t cooled_pages = 0, cooled_bytes = 0;  // hot pages that got their cold form; bytes saved
  uint64_t corrupt_segments = 0, lost_segments = 0;  // failed digest; not where they should be
  uint64_t recovered_pages = 0, damaged_records = 0, damaged_logs = 0;
  uint64_t locked_records = 0;  // sealed with keys that are not here
  uint64_t expired_leases = 0, disk_errors = 0;
  uint64_t scrubbed_bytes = 0;  // read by the scrubber
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_RESIDENCY_USAGE_H_
