// Movement: brings bytes into tiers, out of them, and from one tier to another. It owns the tiers
// and the catalog, and decides nothing: Cooling and TieredStore say what moves where.
//
// Lock rule: Movement has no lock, and never runs under one: all of its calls may do I/O. The right
// to move is the caller's. A call that takes a claim moves bytes of the claimed page alone, one
// that takes a room fills that room, and the others read, or erase what nobody sees any longer.
// What it does is visible in Residency after the bytes have come, and before they go.
//
// Nothing here waits for a claim or for room. After a call that takes a claim, the page may be cut,
// or gone: segments that prove damaged are dropped (Read, CopyToHost, CopyToDisk, VerifyCopies).
//
// Thread-safe. Errors are those of Tier. Errors of the disk count in StoreCounters::disk_errors.
#ifndef KVSTOW_STORAGE_STORE_MOVEMENT_MOVEMENT_H_
#define KVSTOW_STORAGE_STORE_MOVEMENT_MOVEMENT_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/shared_bytes.h"
#include "storage/catalog.h"
#include "storage/segment.h"
#include "storage/store/residency/erasures.h"
#include "storage/store/residency/marks.h"
#include "storage/store/residency/residency.h"
#include "storage/tier.h"

namespace kvstow {

// The parts of a store. A NoopTier stands for an absent tier, a NoopCatalog for an absent catalog.
struct TieredStoreParts {
  std::array<std::unique_ptr<Tier>, kTiers> tiers;
  std::unique_ptr<Catalog> catalog;
};

// The party that compares the bytes in host memory with their digests: the store, or a reader,
// which compares what it got and asks again with kStore when it differs.
enum class Checks : uint8_t { kStore, kReader };

class Movement {
 public:
  using Bodies = std::vector<absl::StatusOr<SharedBytes>>;

  // `parts` are complete. `residency` outlives it.
  Movement(Residency& residency, TieredStoreParts parts)
      : residency_(residency), erasures_(residency), parts_(std::move(parts)) {}
  Movement(const Movement&) = delete;
  Movement& operator=(const Movement&) = delete;

  // Returns whether there is such a tier.
  bool HasTier(TierId t) const { return tier(t).holds_bytes(); }

  // Pages that nobody sees yet: a new page's bodies into a tier in which the caller has room, and
  // out of it again.
  absl::Status WriteNew(TierId to, const PageEntry& page, std::span<const SegmentBody> bodies,
                        Ack ack);
  void EraseNew(TierId from, std::span<const SegmentBody> bodies);

  // Answers that nothing is stored of any of the segments.
  static Bodies NothingFor(std::span<const uint16_t> indices);
  // Reads segments of a page that anybody may be moving, each from its hottest copy. So a body may
  // be missing, or fail its digest, though the page has a good one.
  Bodies ReadHottest(const Residency::Copies& copies, std::span<const uint16_t> indices,
                     Checks checks);
  // Reads segments from their hottest good copies. Copies that prove bad are dropped, and with the
  // last copy of a segment the page's tail.
  Bodies Read(Claim& claim, std::span<const uint16_t> indices);
  // Reads every copy of every segment. A damaged one counts, and goes as when Read finds it. One on
  // disk that has a good copy in memory is written again. Returns how many bytes were read.
  uint64_t VerifyCopies(Claim& claim);

  // Copies bodies that were read from disk to the host tier, if it has room to spare and nobody is
  // moving the page.
  void Promote(const PageRef& page, std::span<const uint16_t> indices,
               std::span<const SharedBytes> bodies);
  absl::Status CopyToHost(Claim& claim, std::span<const uint16_t> indices, Room room);
  // Sees to it that the leading `end` segments are on disk and survive what `ack` says. `room` is
  // that of those which are not there yet.
  absl::Status CopyToDisk(Claim& claim, size_t end, Ack ack, Room room);
  // Sees to it that what is on disk of the page survives what `ack` says.
  absl::Status Strengthen(Claim& claim, Ack ack);
  // The segments leave `from`; see Claim::DropCopies.
  void DropCopies(Claim& claim, TierId from, std::span<const uint16_t> indices,
                  std::optional<TierId> by = std::nullopt);
  // Forgets segments [keep, end) of the page in every tier; at 0 the page. A `whole` page goes
  // whole. FAILED_PRECONDITION when that is only policy and the page is leased or pinned.
  absl::Status Truncate(Claim& claim, size_t keep, Why why,
                        std::optional<TierId> by = std::nullopt);
  // Puts `page`, another coding of the claimed page that is not larger, in its place: into the
  // tiers that its segments name. Returns false when the page stays as it is.
  bool Replace(Claim& claim, std::unique_ptr<PageEntry> page, std::span<const SharedBytes> bodies);

  // Returns whether something that was forgotten is still to be erased on disk.
  bool HasForgotten() { return erasures_.bytes() > 0; }
  // Erases on disk what was forgotten, until the disk refuses.
  absl::Status EraseForgotten();
  // Returns OK once nothing of this name (without a key: of its space) is left to erase.
  absl::Status EraseForgotten(const PageName& name);
  // Forgets the record of a space, whose pages are gone.
  absl::Status EraseSpace(SpaceId space);

  absl::Status WriteSpace(const SpaceRecord& space) { return parts_.catalog->PutSpace(space); }
  // Makes everything that was acknowledged so far survive power loss.
  absl::Status Sync() { return parts_.catalog->Sync(); }

 private:
  // A copy of a segment that proved missing or damaged.
  struct BadCopy {
    uint16_t index;
    TierId tier;
  };

  Tier& tier(TierId t) const { return *parts_.tiers[static_cast<size_t>(t)]; }
  absl::Status Write(TierId to, const PageEntry& page, std::span<const SegmentBody> bodies,
                     Ack ack);
  absl::StatusOr<SharedBytes> ReadOne(TierId from, const ExpectedSegment& segment);
  absl::StatusOr<std::vector<SegmentBody>> ReadAll(Claim& claim, std::span<const uint16_t> indices);
  void DropBad(Claim& claim, std::span<const BadCopy> bad, size_t keep);
  bool WriteElsewhere(const PageEntry& page, std::span<const SharedBytes> bodies);
  void EraseInMemory(const PageEntry& page);
  void CountDiskErrors(uint64_t errors);

  Residency& residency_;
  Erasures erasures_;
  const TieredStoreParts parts_;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_MOVEMENT_MOVEMENT_H_
