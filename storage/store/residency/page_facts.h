// Answers of a store about its pages, each as of one moment. Values.
#ifndef KVSTOW_STORAGE_STORE_RESIDENCY_PAGE_FACTS_H_
#define KVSTOW_STORAGE_STORE_RESIDENCY_PAGE_FACTS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/digest.h"
#include "base/shared_bytes.h"
#include "storage/segment.h"
#include "storage/store/residency/lease_table.h"

namespace kvstow {

// The result of a put.
//   kStored        The page is new.
//   kAlreadyThere  The page was there already: same key, same raw digest.
//   kConflict      Another page has the key. It stays.
enum class PutOutcome { kStored, kAlreadyThere, kConflict };

// The result of Find for a page.
struct PageFacts {
  PageNumber number = 0;
  SharedBytes header;
  Digest128 raw_digest;
  uint32_t tokens = 0;
  uint64_t first_position = 0;
  uint64_t raw_bytes = 0;              // 4 GiB stand for more
  bool whole = false, hot = false;     // see PageToStore
  std::vector<SegmentFacts> segments;  // those present, a leading part
  std::vector<TierId> tiers;           // hottest tier of each
  Ack ack = Ack::kMemory;              // what all of these segments survive, at least
  uint64_t stored_bytes() const;
};

// The result of Lookup for a page.
struct FoundPage {
  PageNumber number = 0;
  uint64_t stored_bytes = 0;  // of the segments present
  uint32_t tokens = 0;
  uint16_t segments = 0;
  uint8_t levels = 0;   // whole levels, by TieredStoreOptions::count_levels
  TierId tier{};        // the hottest tier that holds the base
  bool remote = false;  // another server sent it, and no tier here has it
};

// The result of Lookup.
struct PrefixMatch {
  std::vector<FoundPage> pages;  // of the leading keys that are present
  // The lease on those pages; 0 when there are no pages, no lease was asked for, or there is no
  // room for one.
  LeaseId lease = 0;
  bool lease_refused = false;  // for want of room
  Duration ttl{};
  uint64_t tokens() const;
};

// Returns the whole levels of a page with so many segments: at most 254.
using CountLevels = uint8_t (*)(std::span<const uint8_t> header, size_t segments);

// A page as it is now, for statistics.
struct PageSample {
  FoundPage page;
  SpaceId space = 0;
  uint64_t raw_bytes = 0;
  Duration idle{};  // since a prompt reached it, or since the store was opened; whole seconds
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_RESIDENCY_PAGE_FACTS_H_
