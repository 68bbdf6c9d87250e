// Placement: which bytes are worth least where they are. Free functions, so that another policy is
// another file.
//
// This policy is plain: the page that was used longest ago cools first, and within it the last
// segments. Of pages that are equally old, the one deeper in its prefix goes first, since a page is
// worthless without its ancestors; uses within one kAgeStep count as equally old, because a
// prompt's pages arrive one after the other, ancestors first.
#ifndef KVSTOW_STORAGE_PLACEMENT_H_
#define KVSTOW_STORAGE_PLACEMENT_H_

#include <cstdint>
#include <span>
#include <tuple>

#include "base/clock.h"
#include "storage/segment.h"

namespace kvstow {

inline constexpr Duration kAgeStep = std::chrono::seconds(1);

inline int64_t AgeOf(Time use) { return use.time_since_epoch() / kAgeStep; }

// Smaller = cools first.
struct EvictionRank {
  int64_t age = 0;
  uint64_t first_position = 0;
  PageNumber number = 0;
  friend bool operator<(const EvictionRank& a, const EvictionRank& b) {
    return std::tie(a.age, b.first_position, a.number) <
           std::tie(b.age, a.first_position, b.number);
  }
};

// How many of a page's segments stay in a tier from which `wanted` bytes should go: those before
// the result. bytes[i] is what segment i takes there (0 = it is not there). All go when the page is
// `whole`.
size_t SegmentsToKeep(std::span<const uint64_t> bytes, uint64_t wanted, bool whole);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_PLACEMENT_H_
