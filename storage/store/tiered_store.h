// TieredStore: pages over the tiers gpu, host and disk. It takes every decision; tiers only move
// bytes.
//
//   Put     publishes a page: visible only after its bodies are in a tier (and, for Ack::kProcess
//           and kDurable, on disk). Same key and same raw digest again stores nothing
//           (kAlreadyThere), but makes the page survive what the new ack promises; same key and
//           other content keeps the first and counts a conflict (kConflict).
//   Lookup  the longest prefix of a list of keys, from RAM alone, and a lease on it.
//   Find    header and facts of a page, from RAM alone.
//   Read    bodies of a page's segments, digest-checked. A body that fails its digest is never
//           returned: if no other tier has a good copy, the segment and those after it are dropped
//           (of a `whole` page, or at segment 0, the page), and counted as corrupt.
//
// Cooling: budgets count encoded bytes (bodies and headers). When a tier is above its high
// watermark, the demoter moves or drops segments until it is below its low one; a Put that finds no
// room does the same at once. Which page goes next is an EvictionPolicy's choice, one policy a
// tier; it loses its last segment there, a `whole` page all of them, and then the policy is asked
// again (see PageIndex). A page's segments are always a leading part of its list, and so are those
// of them that are on disk. Leased and pinned pages lose no bytes, but they may move to a colder
// tier. Pins and leases end with the process.
//
// What counts as a use of a page: a prompt that reaches it. That is a Lookup that takes a lease on
// it, a Put that brings it or finds it there, and Use for what comes without a Lookup; but a Put
// or a Use of a page that is leased is taken for what the lease was for, and does not count again.
// A page's parent, which a policy may want to go after it, is learned from the order of the keys of
// a Lookup and from PageToStore::parent_key; what is known when the page is written to disk is kept
// there.
//
// Targets: a tier may say how many bits of a value a page keeps that cools into it: segments beyond
// that are dropped, not moved. `whole`, leased and pinned pages move as they are.
//
// Hot and cold form: a page that was put as `hot` becomes another, smaller coding of the same
// content before it leaves memory, by a function that the store is given. Hot pages are cooled so
// before anything is demoted, the one used longest ago first, by whoever needs the room: a round of
// demotion, or a Put. The cold form takes the page's place in one step, under a number of its own,
// in every tier that held all of the hot one and with the same ack. Leased and pinned pages stay as
// they are; what has no cold form, or no smaller one, cools like any other page.
//
// Warming: what is read from disk is copied to the host tier as it is, where there is room: below
// the low watermark at once, up to the high one at the second use since the page left memory.
// Everything that cools from memory goes to disk: see docs/decisions/0041.
//
// A segment may be in several tiers at once (a durable copy of a hot page); it is read from the
// hottest. Leases always have a TTL.
// Thread-safe; no lock is held across I/O. Errors are values as in tier.h; RESOURCE_EXHAUSTED when
// all tiers are full of leased or pinned pages; NOT_FOUND is a miss. Clock and tiers are injected.
#ifndef KVSTOW_STORAGE_STORE_TIERED_STORE_H_
#define KVSTOW_STORAGE_STORE_TIERED_STORE_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "storage/catalog.h"
#include "storage/segment.h"
#include "storage/store/lease_table.h"
#include "storage/store/page_facts.h"
#include "storage/store/store_options.h"
#include "storage/store/usage.h"
#include "storage/tier.h"

namespace kvstow {

enum class PutOutcome { kStored, kAlreadyThere, kConflict };

// Whose it is to compare what lies in host memory with its digests: the store's, or a reader's that
// does so with what it got, and asks again with kStore when it differs.
enum class Checks : uint8_t { kStore, kReader };

struct PrefixMatch {
  std::vector<FoundPage> pages;  // of the leading keys that are present
  // Over those pages; 0 when there are none, none was asked for, or there is no room for one.
  LeaseId lease = 0;
  bool lease_refused = false;  // for want of room
  Duration ttl{};
  uint64_t tokens() const;
};

class TieredStore {
 public:
  // Recovers what the catalog remembers. FAILED_PRECONDITION when watermarks or budgets contradict
  // each other, INVALID_ARGUMENT when there is no such policy.
  static absl::StatusOr<std::unique_ptr<TieredStore>> Open(TieredStoreOptions options,
                                                           TieredStoreParts parts);
  ~TieredStore();  // does not flush: a store that is killed must come back all the same

  // What cools hot pages; they cool like any other before it is set. It outlives the store.
  void SetMakeColdForm(MakeColdForm make_cold_form);

  absl::StatusOr<PutOutcome> Put(PageToStore page);
  PrefixMatch Lookup(SpaceId space, std::span<const absl::string_view> keys, bool take_lease);
  // Tells the eviction policies of the uses that Lookup left for after its answer. Any call that
  // could tell the difference does it first.
  void CatchUp();
  // Extends a lease by its TTL; false when it has expired or is unknown.
  bool Renew(LeaseId lease);
  bool Release(LeaseId lease);
  absl::StatusOr<PageFacts> Find(const PageName& name);
  // A prompt reached the page without a Lookup. Ignored when it is not there.
  void Use(const PageName& name);
  // One result for each index, in order. Reading alone is no use. What lies on a GPU or a disk is
  // checked whatever `checks` says.
  std::vector<absl::StatusOr<SharedBytes>> Read(const PageName& name, PageNumber number,
                                                std::span<const uint16_t> indices,
                                                Checks checks = Checks::kStore);
  // What a page's segments are worth from now on, in place of the gains that it was put with; one
  // for each segment of its list. NOT_FOUND when the page is not there any longer.
  absl::Status SetGains(const PageName& name, PageNumber number, std::span<const float> gains);
  // NOT_FOUND; FAILED_PRECONDITION when it is leased and not `force`. The page is served no longer;
  // OK when it, and older pages of its name, are erased on disk too, which survives kill -9.
  // UNAVAILABLE when the disk did not take that. It is tried again, by RunDemotion or who needs
  // the room; its bytes count on disk until then. A put of the name meanwhile is not harmed.
  absl::Status Delete(const PageName& name, bool force);
  // The page of this number alone, leased or not: for one whose bytes mean nothing. It counts as
  // dropped. NOT_FOUND when the name has another by now, which stays.
  absl::Status Drop(const PageName& name, PageNumber number);
  absl::Status Pin(const PageName& name, bool pinned);

  // Pages come back after a restart only if their space was saved. FAILED_PRECONDITION for an id
  // that belongs to a space whose record could not be read: its pages must not be taken for others.
  absl::Status SaveSpace(const SpaceRecord& space);
  // Forgets all pages of a space, leased and pinned ones too, and its record. Its id is never given
  // again, and puts into it are FAILED_PRECONDITION from now on. OK once all of it is erased on
  // disk; UNAVAILABLE when the disk did not take it, which is tried again in the background.
  absl::Status DropSpace(SpaceId space);
  // The spaces that were recovered at Open.
  std::vector<SpaceRecord> RecoveredSpaces();
  // An id that no space ever had in this store; a new one at each call.
  SpaceId NewSpaceId();

  StoreUsage Usage();
  // Of one space only (tiers' budgets are left 0).
  StoreUsage Usage(SpaceId space);
  StoreCounters Counters();
  // Pages of a space (0 = all), for listing and verification.
  std::vector<PageName> Pages(SpaceId space);
  // Up to `max_pages` of a space (0 = all), by no order, from among 65,536 of the store's pages: it
  // stays quick where there are millions. No use of the pages.
  std::vector<PageSample> Sample(SpaceId space, size_t max_pages);
  // What is stored now, oldest first; and one page verified at rest, in every tier that has it:
  // answers how many bytes were read, 0 when it is gone or being moved. Damaged copies count and go
  // as when a read finds them; one on disk is written again where memory has a good one. No use of
  // the page. For a Scrubber.
  std::vector<PageRef> PageRefs();
  uint64_t Scrub(const PageRef& page);
  // The same at once, for whoever found a page damaged: waits while it is being moved, and is
  // NOT_FOUND when nothing good is left of it, or the name has another number by now, which stays.
  absl::Status Examine(const PageName& name, PageNumber number);
  // Demotes and drops until the tier holds at most `bytes`.
  absl::Status Shrink(TierId tier, uint64_t bytes);
  // The tier's budget from now on, until the store is opened again. More room is used at once; what
  // is over a smaller budget is demoted and dropped before this returns, but for what leases, pins
  // and moves keep: that goes in the background when they end. FAILED_PRECONDITION when there is no
  // such tier.
  absl::Status SetBudget(TierId tier, uint64_t bytes);
  // Writes every page that is only in memory to disk, then syncs. OK when there is no disk.
  absl::Status Flush();
  // One round of what the background does: removals that the disk refused, demotion to the low
  // watermarks, expiry of leases.
  void RunDemotion();
  // Recounts everything and compares it with what is kept up to date; INTERNAL names what differs.
  absl::Status CheckInvariants();

 private:
  class Impl;
  explicit TieredStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_TIERED_STORE_H_
