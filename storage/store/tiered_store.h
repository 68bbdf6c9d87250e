// TieredStore: pages over the tiers gpu, host and disk. Three concepts share the work, each with
// its own lock rule; a concept may call those above it:
//
//   Residency  what is where, and how much room there is  one lock, no I/O  residency/residency.h
//   Movement   bytes into tiers, out and across           no lock, all I/O  movement/movement.h
//   Cooling    what leaves a tier, and when               claims one page   cooling/cooling.h
//
// TieredStore owns the three. Its own methods are the use cases that need more than one of them:
//
//   Put     publishes a page. The page is visible only after its bodies are in a tier (and, for
//           Ack::kProcess and kDurable, on disk). Same key and same raw digest again stores nothing
//           (kAlreadyThere), but makes the page survive what the new ack promises. Same key and
//           other content leaves the first page and counts a conflict (kConflict).
//   Read    returns bodies of a page's segments, digest-checked. It never returns a body that fails
//           its digest. When no other tier has a good copy, it drops the segment and those after it
//           (of a `whole` page, or at segment 0, the page), and counts them as corrupt.
//
// What RAM alone answers is asked from residency(): Lookup with its leases, Find, uses, pins, usage
// and counters. None of that ever waits for a disk. What an operator changes is asked from
// cooling(): budgets, and room at once.
//
// Budgets count encoded bytes (bodies and headers). A page's segments are always a leading part of
// its list, and so are its segments on disk. Pins and leases end with the process; leases always
// have a TTL. A segment may be in several tiers at once (a durable copy of a hot page); reads take
// the hottest.
//
// Use of a page: a prompt reaches it. That is a Lookup that takes a lease on it, a Put that brings
// it or finds it there, and Use for a prompt without a Lookup. A Put or a Use of a leased page is
// taken for the lease's own purpose, and does not count again. A policy may want a page's parent to
// go after the page. The store learns the parent from the order of the keys of a Lookup and from
// PageToStore::parent_key. It writes a known parent to disk with the page.
//
// Warming: a read from disk copies the segments to the host tier as they are, where there is room:
// below the low watermark at once, up to the high one at the second use since the page left memory.
// Everything that cools out of memory goes to disk: see docs/decisions/0041.
//
// Tenants: each space belongs to a tenant, a small number. A tenant may have limits, guarantees and
// a weight (TenantShare, Cooling::SetShares). Room is made by pages of the tenant that has most
// above its share: docs/decisions/0073. With one tenant nothing of that is seen.
//
// Thread-safe; no lock is held across I/O. Errors are values as in tier.h; RESOURCE_EXHAUSTED when
// all tiers, or the limits of the tenant, are full of leased or pinned pages; NOT_FOUND is a miss.
// Clock and tiers are injected.
#ifndef KVSTOW_STORAGE_STORE_TIERED_STORE_H_
#define KVSTOW_STORAGE_STORE_TIERED_STORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/shared_bytes.h"
#include "storage/record.h"
#include "storage/segment.h"
#include "storage/store/cooling/cooling.h"
#include "storage/store/movement/movement.h"
#include "storage/store/residency/page_facts.h"
#include "storage/store/residency/residency.h"
#include "storage/store/residency/store_options.h"

namespace kvstow {

class TieredStore {
 public:
  // Recovers what the catalog remembers. Fails with FAILED_PRECONDITION when options contradict
  // each other (watermarks, budgets, target bits, lease TTL), and with INVALID_ARGUMENT when there
  // is no such policy.
  static absl::StatusOr<std::unique_ptr<TieredStore>> Open(TieredStoreOptions options,
                                                           TieredStoreParts parts);
  // Does not flush: a killed store must come back all the same.
  ~TieredStore() = default;
  TieredStore(const TieredStore&) = delete;
  TieredStore& operator=(const TieredStore&) = delete;

  Residency& residency() { return residency_; }
  Cooling& cooling() { return cooling_; }

  absl::StatusOr<PutOutcome> Put(PageToStore page);
  // Returns one result for each index, in order. Reading alone is no use. The store always checks
  // what lies on a GPU or a disk, whatever `checks` says.
  std::vector<absl::StatusOr<SharedBytes>> Read(const PageName& name, PageNumber number,
                                                std::span<const uint16_t> indices,
                                                Checks checks = Checks::kStore);
  // Sets what a page's segments are worth from now on, in place of the gains that it was put with;
  // one for each segment of its list. NOT_FOUND when the page is not there any longer;
  // INVALID_ARGUMENT for too few gains.
  absl::Status SetGains(const PageName& name, PageNumber number, std::span<const float> gains);
  // Stops serving the page at once. Returns OK when the page, and older pages of its name, are
  // erased on disk too, which survives kill -9. Fails with NOT_FOUND; with FAILED_PRECONDITION when
  // the page is leased and not `force`; with UNAVAILABLE when the disk did not take the removal.
  // Cooling tries that again in the background, and when it needs the room; the bytes count on disk
  // until then. A put of the name meanwhile is not harmed.
  absl::Status Delete(const PageName& name, bool force);
  // Drops the page of this number alone, leased or not, because its bytes mean nothing. It counts
  // as dropped. NOT_FOUND when the name has another page by now, which stays.
  absl::Status Drop(const PageName& name, PageNumber number);
  // Verifies one page at rest, in every tier that has it, for a Scrubber. Returns how many bytes it
  // read, 0 when the page is gone or being moved. Damaged copies count and go as when a read finds
  // them. It writes a damaged copy on disk again where memory has a good one. No use of the page.
  uint64_t Scrub(const PageRef& page);
  // Verifies a page like Scrub, for a caller that found it damaged: waits while it is being moved.
  // NOT_FOUND when nothing good is left of the page, or the name has another number by now, which
  // stays.
  absl::Status Examine(const PageName& name, PageNumber number);
  // Writes every page that is only in memory to disk, then syncs. OK when there is no disk.
  absl::Status Flush();

  // Saves a space. Pages come back after a restart only if their space was saved. Fails like
  // Residency::AddSpace.
  absl::Status SaveSpace(const SpaceRecord& space);
  // Forgets all pages of a space, leased and pinned ones too, and its record. The id is never given
  // again, and puts into it fail with FAILED_PRECONDITION from now on. Returns OK once all of it is
  // erased on disk. Returns UNAVAILABLE when the disk did not take it; the background tries that
  // again.
  absl::Status DropSpace(SpaceId space);
  // Returns the spaces that were recovered at Open.
  const std::vector<SpaceRecord>& recovered_spaces() const { return recovered_spaces_; }

 private:
  TieredStore(TieredStoreOptions options, const PolicyInfo& policy, TieredStoreParts parts,
              LoadedRecords loaded);

  // Parts of Put: put.cc.
  std::optional<absl::Status> MeetAck(const PageRef& page, Ack ack);
  absl::StatusOr<Room> StoreBodies(PageEntry& page, std::span<const SharedBytes> bodies, Ack ack);
  absl::Status CheckFits(const TenantShare& share, uint64_t bytes, Ack ack) const;
  struct Stored {
    TierId tier;
    Room room;
  };
  absl::StatusOr<Stored> StoreInMemory(const PageEntry& page, const TenantShare& share,
                                       std::span<const SegmentBody> bodies, uint64_t bytes);
  absl::StatusOr<Room> StoreOnDisk(const PageEntry& page, const TenantShare& share,
                                   std::span<const SegmentBody> bodies, uint64_t bytes, Ack ack);
  bool usable(TierId t) const { return residency_.budget(t) > 0; }

  const TieredStoreOptions options_;
  const std::vector<SpaceRecord> recovered_spaces_;
  Residency residency_;
  Movement movement_;
  Cooling cooling_;  // its thread ends before what it works on
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_TIERED_STORE_H_
