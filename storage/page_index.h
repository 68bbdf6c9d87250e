// The page index: what is stored, where each segment is, and in which order pages cool. All in RAM.
//
// It keeps its sums up to date: every change goes through Insert, Remove or Change, which count the
// page out and in again, so Usage() is exact at all times. Not thread-safe: the store's lock guards
// it, and pointers to entries are only followed under that lock.
//
// `busy` makes a page the business of one thread: only the thread that set it may change where the
// page's segments are, remove the page, or clear the flag. It is held across I/O in place of the
// lock. Readers do not mind it.
#ifndef KVSTOW_STORAGE_PAGE_INDEX_H_
#define KVSTOW_STORAGE_PAGE_INDEX_H_

#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "storage/catalog.h"
#include "storage/placement.h"
#include "storage/segment.h"
#include "storage/usage.h"

namespace kvstow {

// A set of tiers.
class TierSet {
 public:
  bool Has(TierId t) const { return (bits_ >> Index(t) & 1) != 0; }
  void Add(TierId t) { bits_ |= 1 << Index(t); }
  void Remove(TierId t) { bits_ &= ~(1 << Index(t)); }
  bool empty() const { return bits_ == 0; }
  bool HasColderThan(TierId t) const { return bits_ >> (Index(t) + 1) != 0; }
  // The set must not be empty.
  TierId Hottest() const { return static_cast<TierId>(std::countr_zero(bits_)); }
  bool operator==(const TierSet&) const = default;

 private:
  static int Index(TierId t) { return static_cast<int>(t); }
  uint8_t bits_ = 0;
};

struct PageEntry {
  struct Segment {
    SegmentFacts facts;
    TierSet tiers;  // never empty while the page is in the index
  };

  PageNumber number = 0;
  PageName name;
  SharedBytes header;
  Digest128 raw_digest;
  uint64_t raw_bytes = 0;
  uint64_t first_position = 0;
  uint32_t tokens = 0;
  bool whole = false;
  bool hot = false;  // see PageToStore
  std::vector<Segment> segments;
  Ack disk_ack = Ack::kMemory;  // what the copy on disk survives
  int64_t age = 0;              // AgeOf its last use
  uint32_t leases = 0;
  bool pinned = false;
  bool busy = false;

  bool is_protected() const { return leases > 0 || pinned; }
  EvictionRank rank() const { return {age, first_position, number}; }
  // What a copy of segment `i` takes in a tier: the header goes with the base.
  uint64_t BytesOf(size_t i) const {
    return segments[i].facts.bytes + (i == 0 ? header.size() : 0);
  }
  uint64_t BytesOf(size_t first, size_t end) const;
  // Those of the segments [first, end) that have a copy in `tier`.
  std::vector<uint16_t> SegmentsIn(TierId tier, size_t first) const;
  // What the catalog keeps, of the leading `segments_on_disk`.
  PageRecord Record(size_t segments_on_disk) const;
  // How many leading segments are on disk.
  size_t on_disk() const;
  SegmentId id(size_t i) const { return {number, static_cast<uint16_t>(i)}; }
};

class PageIndex {
 public:
  // Pages that have bytes in a tier, the one to cool first at the front.
  using Order = absl::btree_map<EvictionRank, PageEntry*>;

  PageEntry* Find(const PageName& name);
  PageEntry* Find(PageNumber number);
  // The name must be new. The result lives until it is removed.
  PageEntry* Insert(std::unique_ptr<PageEntry> page);
  std::unique_ptr<PageEntry> Remove(PageEntry* page);
  // `edit` may change anything but the page's name and number.
  void Change(PageEntry* page, absl::FunctionRef<void(PageEntry&)> edit);
  // Changes the age, cheaply.
  void Touch(PageEntry* page, int64_t age);

  const Order& order(TierId tier) const { return order_[static_cast<size_t>(tier)]; }
  // Those of them that are hot.
  const Order& hot_order(TierId tier) const { return hot_order_[static_cast<size_t>(tier)]; }
  uint64_t bytes(TierId tier) const {
    return usage_.tiers[static_cast<size_t>(tier)].encoded_bytes;
  }
  size_t size() const { return pages_.size(); }
  // Budgets and leases are left 0.
  const StoreUsage& usage() const { return usage_; }
  StoreUsage usage(SpaceId space) const;
  void ForEach(absl::FunctionRef<void(const PageEntry&)> visit) const;

  // Recounts everything; INTERNAL names what differs.
  absl::Status CheckInvariants() const;

 private:
  void Count(const PageEntry& page, bool in);
  // The orders of a tier that the page is in when it has bytes there.
  std::vector<Order*> OrdersOf(const PageEntry& page, int tier);

  absl::flat_hash_map<PageName, std::unique_ptr<PageEntry>> pages_;
  absl::flat_hash_map<PageNumber, PageEntry*> by_number_;
  std::array<Order, kTiers> order_, hot_order_;
  StoreUsage usage_;
  absl::flat_hash_map<SpaceId, StoreUsage> by_space_;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_PAGE_INDEX_H_
