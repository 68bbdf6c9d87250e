// TieredStore: pages over the tiers gpu, host and disk. It takes every decision; tiers only move
// bytes.
//
//   Put     publishes a page. The page is visible only after its bodies are in a tier (and, for
//           Ack::kProcess and kDurable, on disk). Same key and same raw digest again stores nothing
//           (kAlreadyThere), but makes the page survive what the new ack promises. Same key and
//           other content keeps the first page and counts a conflict (kConflict).
//   Lookup  finds the longest prefix of a list of keys, from RAM alone, and leases it.
//   Find    returns header and facts of a page, from RAM alone.
//   Read    returns bodies of a page's segments, digest-checked. It never returns a body that fails
//           its digest. When no other tier has a good copy, it drops the segment and those after it
//           (of a `whole` page, or at segment 0, the page), and counts them as corrupt.
//
// Cooling: budgets count encoded bytes (bodies and headers). When a tier is above its high
// watermark, the demoter moves or drops segments until it is below its low one; a Put that finds no
// room does the same at once. Each tier has an EvictionPolicy, which chooses the next page. That
// page loses its last segment there, a `whole` page all of them, and then the policy is asked again
// (see PageIndex). A page's segments are always a leading part of its list, and so are its segments
// on disk. Leased and pinned pages lose no bytes, but they may move to a colder tier. Pins and
// leases end with the process.
//
// Use of a page: a prompt reaches it. That is a Lookup that takes a lease on it, a Put that brings
// it or finds it there, and Use for a prompt without a Lookup. A Put or a Use of a leased page is
// taken for the lease's own purpose, and does not count again. A policy may want a page's parent to
// go after the page. The store learns the parent from the order of the keys of a Lookup and from
// PageToStore::parent_key. It writes a known parent to disk with the page.
//
// Targets: a tier may say how many bits of a value a page keeps that cools into it. Segments beyond
// that are dropped, not moved. `whole`, leased and pinned pages move as they are.
//
// Hot and cold form: a page that was put as `hot` becomes another, smaller coding of the same
// content before it leaves memory, by a function that the store is given. The thread that needs the
// room (a round of demotion, or a Put) cools hot pages before it demotes anything, the one used
// longest ago first. The cold form takes the page's place in one step, under a number of its own,
// in every tier that held all of the hot form, and with the same ack. Leased and pinned pages stay
// as they are. A page without a cold form, or without a smaller one, cools like any other page.
//
// Warming: a read from disk copies the segments to the host tier as they are, where there is room:
// below the low watermark at once, up to the high one at the second use since the page left memory.
// Everything that cools out of memory goes to disk: see docs/decisions/0041.
//
// A segment may be in several tiers at once (a durable copy of a hot page); reads take the hottest.
// Leases always have a TTL. Thread-safe; no lock is held across I/O. Errors are values as in
// tier.h; RESOURCE_EXHAUSTED when all tiers are full of leased or pinned pages; NOT_FOUND is a
// miss. Clock and tiers are injected.
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

// The party that compares the bytes in host memory with their digests: the store, or a reader,
// which compares what it got and asks again with kStore when it differs.
enum class Checks : uint8_t { kStore, kReader };

struct PrefixMatch {
  std::vector<FoundPage> pages;  // of the leading keys that are present
  // The lease on those pages; 0 when there are no pages, no lease was asked for, or there is no
  // room for one.
  LeaseId lease = 0;
  bool lease_refused = false;  // for want of room
  Duration ttl{};
  uint64_t tokens() const;
};

class TieredStore {
 public:
  // Recovers what the catalog remembers. Fails with FAILED_PRECONDITION when options contradict
  // each other (watermarks, budgets, target bits, lease TTL), and with INVALID_ARGUMENT when there
  // is no such policy.
  static absl::StatusOr<std::unique_ptr<TieredStore>> Open(TieredStoreOptions options,
                                                           TieredStoreParts parts);
  ~TieredStore();  // does not flush: a killed store must come back all the same

  // Sets the function that cools hot pages. Before that, hot pages cool like any other. What the
  // function refers to must outlive the store.
  void SetMakeColdForm(MakeColdForm make_cold_form);

  absl::StatusOr<PutOutcome> Put(PageToStore page);
  PrefixMatch Lookup(SpaceId space, std::span<const absl::string_view> keys, bool take_lease);
  // Tells the eviction policies the uses that Lookup left for after its answer. Any call that could
  // tell the difference does it first.
  void CatchUp();
  // Extends a lease to a full TTL from now; false when it has expired or is unknown.
  bool Renew(LeaseId lease);
  bool Release(LeaseId lease);
  absl::StatusOr<PageFacts> Find(const PageName& name);
  // Records that a prompt reached the page without a Lookup. Ignored when the page is not there.
  void Use(const PageName& name);
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
  // RunDemotion, or a thread that needs the room, tries that again; the bytes count on disk until
  // then. A put of the name meanwhile is not harmed.
  absl::Status Delete(const PageName& name, bool force);
  // Drops the page of this number alone, leased or not, because its bytes mean nothing. It counts
  // as dropped. NOT_FOUND when the name has another page by now, which stays.
  absl::Status Drop(const PageName& name, PageNumber number);
  absl::Status Pin(const PageName& name, bool pinned);

  // Saves a space. Pages come back after a restart only if their space was saved. Fails with
  // FAILED_PRECONDITION for an id that belongs to a space whose record could not be read: its pages
  // must not be taken for others.
  absl::Status SaveSpace(const SpaceRecord& space);
  // Forgets all pages of a space, leased and pinned ones too, and its record. The id is never given
  // again, and puts into it fail with FAILED_PRECONDITION from now on. Returns OK once all of it is
  // erased on disk. Returns UNAVAILABLE when the disk did not take it; the background tries that
  // again.
  absl::Status DropSpace(SpaceId space);
  // Returns the spaces that were recovered at Open.
  std::vector<SpaceRecord> RecoveredSpaces();
  // Returns an id that no space ever had in this store; a new one at each call.
  SpaceId NewSpaceId();

  StoreUsage Usage();
  // Covers one space only (tiers' budgets are left 0).
  StoreUsage Usage(SpaceId space);
  StoreCounters Counters();
  // Returns the pages of a space (0 = all), for listing and verification.
  std::vector<PageName> Pages(SpaceId space);
  // Tells an observer all pages, as StoreObserver::Restart says. Takes the lock as long as Pages().
  void TellPages(StoreObserver& observer);
  // Returns up to `max_pages` pages of a space (0 = all), by no order, from among 65,536 of the
  // store's pages. It stays quick where there are millions. No use of the pages.
  std::vector<PageSample> Sample(SpaceId space, size_t max_pages);
  // PageRefs returns the stored pages, oldest first, for a Scrubber. Scrub verifies one page at
  // rest, in every tier that has it. It returns how many bytes it read, 0 when the page is gone or
  // being moved. Damaged copies count and go as when a read finds them. It writes a damaged copy on
  // disk again where memory has a good one. No use of the page.
  std::vector<PageRef> PageRefs();
  uint64_t Scrub(const PageRef& page);
  // Verifies a page like Scrub, for a caller that found it damaged: waits while it is being moved.
  // NOT_FOUND when nothing good is left of the page, or the name has another number by now, which
  // stays.
  absl::Status Examine(const PageName& name, PageNumber number);
  // Demotes and drops until the tier holds at most `bytes`. RESOURCE_EXHAUSTED when the rest is
  // leased, pinned or in use.
  absl::Status Shrink(TierId tier, uint64_t bytes);
  // Sets the tier's budget from now on, until the store is opened again. More room is used at once.
  // Before it returns, it demotes and drops what is over a smaller budget, except what leases, pins
  // and moves keep: that goes in the background when they end. FAILED_PRECONDITION when there is no
  // such tier.
  absl::Status SetBudget(TierId tier, uint64_t bytes);
  // Writes every page that is only in memory to disk, then syncs. OK when there is no disk.
  absl::Status Flush();
  // Does one round of the background's work: removals that the disk refused, demotion to the low
  // watermarks, expiry of leases, and the bound on the index's memory.
  void RunDemotion();
  // Recounts everything and compares it with the kept sums. Fails with INTERNAL, which names the
  // difference.
  absl::Status CheckInvariants();

 private:
  class Impl;
  explicit TieredStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_TIERED_STORE_H_
