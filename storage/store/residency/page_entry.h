// The index's data about one page. Residency's lock guards these values, except where a comment
// below says otherwise.
#ifndef KVSTOW_STORAGE_STORE_RESIDENCY_PAGE_ENTRY_H_
#define KVSTOW_STORAGE_STORE_RESIDENCY_PAGE_ENTRY_H_

#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "storage/policies/eviction_policy.h"
#include "storage/record.h"
#include "storage/segment.h"

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

// The index's entry of a page. Make allocates one block of memory: the entry, then the page's key,
// header and segments. There may be millions of entries, so every word counts.
struct PageEntry {
  struct Segment {
    static constexpr uint8_t kNotCounted = UINT8_MAX;

    SegmentFacts facts;
    TierSet tiers;  // never empty while the page is in the index
    // The number of whole levels when the page ends here. The holder of the lock owns this. It fits
    // into the segment's padding.
    uint8_t levels = kNotCounted;
  };

  // Makes the entry of `record`, with all segments in `tiers`. `record` must be within the bounds
  // of storage/record.h.
  static std::unique_ptr<PageEntry> Make(const PageRecord& record, TierSet tiers);
  static void operator delete(void* page) { ::operator delete(page); }  // larger than its type
  PageEntry(const PageEntry&) = delete;
  PageEntry& operator=(const PageEntry&) = delete;

  PageNumber number = 0;
  uint64_t item = 0;  // id in policies: a hash of its name, given by the index
  // The item of the previous page, if known. Like the bits below, it belongs to the thread that
  // made the page busy.
  uint64_t parent = PolicyItem::kNoParent;
  Digest128 raw_digest;
  uint64_t first_position = 0;
  uint32_t raw_bytes = 0;  // for statistics: 4 GiB stand for more
  uint32_t tokens = 0;
  SpaceId space = 0;
  float put_gain = 0;  // of all segments as put; 0 = of the segments that are here
  uint32_t leases = 0;
  uint32_t used_s = 0;  // when a prompt reached it last, in seconds after the store was opened
  // While the page is busy, these belong to the thread that made it so. That thread reads them
  // without the lock.
  uint32_t header_bytes : 24 = 0;
  bool whole : 1 = false;
  bool hot : 1 = false;             // see PageToStore
  bool disk_failed : 1 = false;     // a write to disk failed: the page may be there all the same
  Ack disk_ack : 2 = Ack::kMemory;  // what the copy on disk survives
  uint16_t segment_count = 0;       // see Truncate
  uint8_t key_bytes = 0;
  // The holder of the lock owns these.
  bool pinned : 1 = false;
  bool busy : 1 = false;
  bool held : 1 = false;      // by a policy: see PageIndex::Offer
  bool reachable : 1 = true;  // its parent was here when the policies were told last
  bool listed : 1 = false;    // in the lease that is being made
  uint8_t disk_uses : 2 = 0;  // uses since it left memory; counts to 2 at most

  absl::string_view key() const { return {reinterpret_cast<const char*>(this + 1), key_bytes}; }
  std::span<const uint8_t> header() const {
    return {AsBytes(key()).data() + key_bytes, header_bytes};
  }
  std::span<Segment> segments() { return {const_cast<Segment*>(FirstSegment()), segment_count}; }
  std::span<const Segment> segments() const { return {FirstSegment(), segment_count}; }
  // Forgets the segments from `keep` on.
  void Truncate(size_t keep) { segment_count = static_cast<uint16_t>(keep); }
  PageName name() const { return {.space = space, .key = std::string(key())}; }
  bool Has(const PageName& name) const { return space == name.space && key() == name.key; }
  PageRef ref() const { return {item, number}; }

  bool is_protected() const { return leases > 0 || pinned; }
  // Returns the bytes of a copy of segment `i` in a tier. The header counts with the base.
  uint64_t BytesOf(size_t i) const {
    return segments()[i].facts.bytes + (i == 0 ? uint64_t{header_bytes} : 0);
  }
  uint64_t BytesOf(size_t first, size_t end) const;
  // Returns the index memory of this page without the header, which budgets count as encoded bytes:
  // the entry, its key and segments, and its places in maps and policies (measured:
  // docs/PERFORMANCE.md).
  uint64_t IndexBytes() const { return 200 + key_bytes + 24 * uint64_t{segment_count}; }
  // Returns the segments from `first` on that have a copy in `tier`.
  std::vector<uint16_t> SegmentsIn(TierId tier, size_t first) const;
  // Returns how many segments stay when the next part leaves `tier`: those before its last one
  // there, and none of a `whole` page.
  size_t KeepIn(TierId tier) const;
  // Returns how many leading segments fit into `bytes`, header included: at least the base, and all
  // of a `whole` page.
  size_t SegmentsWithin(uint64_t bytes) const;
  // Returns the catalog's record, with the leading `segments_on_disk` segments.
  PageRecord Record(size_t segments_on_disk) const;
  // Returns how many leading segments are on disk.
  size_t on_disk() const;
  SegmentId id(size_t i) const { return {number, static_cast<uint16_t>(i)}; }

 private:
  PageEntry() = default;
  static size_t TailBytes(size_t key_bytes, size_t header_bytes) {
    return (key_bytes + header_bytes + alignof(Segment) - 1) / alignof(Segment) * alignof(Segment);
  }
  const Segment* FirstSegment() const {
    const uint8_t* const tail = reinterpret_cast<const uint8_t*>(this + 1);
    return reinterpret_cast<const Segment*>(tail + TailBytes(key_bytes, header_bytes));
  }
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_RESIDENCY_PAGE_ENTRY_H_
