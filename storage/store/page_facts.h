// The store's facts about a page at one moment. Values.
#ifndef KVSTOW_STORAGE_STORE_PAGE_FACTS_H_
#define KVSTOW_STORAGE_STORE_PAGE_FACTS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/digest.h"
#include "base/shared_bytes.h"
#include "storage/segment.h"

namespace kvstow {

// The result of Find for a page.
struct PageFacts {
  PageNumber number = 0;
  SharedBytes header;
  Digest128 raw_digest;
  uint32_t tokens = 0;
  uint64_t first_position = 0;
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
  uint8_t levels = 0;  // whole levels, by TieredStoreOptions::count_levels
  TierId tier{};       // the hottest tier that holds the base
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

#endif  // KVSTOW_STORAGE_STORE_PAGE_FACTS_H_
