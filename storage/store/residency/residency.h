// Residency: what is where. It knows the pages of a store, the tiers of each segment, leases, pins,
// uses, spaces and their tenants, and how much room each tier has. It answers from RAM alone.
//
// Lock rule: one mutex guards everything here. Each public call takes it, does one step, and lets
// it go. Nobody outside this folder sees it, and nothing in this folder can do I/O: the folder
// includes no tier and no catalog. A call waits only where its comment says so. Under the lock run
// TieredStoreOptions::count_levels and observer, and the edits and choices that callers of Claim,
// Rooms and Count pass. They must neither block nor call the store.
//
// Work that takes longer than one step leaves a mark, a value that one thread owns:
//   PendingName  a name that is being put                              (marks.h)
//   Claim        a page whose segments move; see PageEntry::busy       (marks.h)
//   Room         bytes on their way into or out of tiers               (marks.h)
// What is forgotten and still on disk waits in Unerased; erasures.h takes it from there.
// So a budget holds at every moment: the bytes of the index and of all rooms, on disk also the
// bytes still to be erased there, are within the budget, or become fewer. A tenant's limit holds in
// the same way, without the bytes to be erased. The holder of a claim or
// a room waits for nobody who might wait for it: no thread waits for a claim while it holds one,
// and only a put waits for room, in hotter tiers before colder ones.
//
// Anybody may make the calls below, but for those at the end. Only Movement, Cooling and
// TieredStore use marks.
#ifndef KVSTOW_STORAGE_STORE_RESIDENCY_RESIDENCY_H_
#define KVSTOW_STORAGE_STORE_RESIDENCY_RESIDENCY_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "storage/policies/eviction_policy.h"
#include "storage/record.h"
#include "storage/segment.h"
#include "storage/store/residency/lease_table.h"
#include "storage/store/residency/page_facts.h"
#include "storage/store/residency/page_index.h"
#include "storage/store/residency/space_ids.h"
#include "storage/store/residency/store_options.h"
#include "storage/store/residency/unerased.h"
#include "storage/store/residency/usage.h"

namespace kvstow {

class Residency {
 public:
  // The copies of some segments of a page, in the order that they were asked for; nothing for a
  // segment that is not there.
  struct Copies {
    PageRef page;
    SpaceId space = 0;
    std::vector<std::optional<PageEntry::Segment>> segments;
  };

  // Starts with what the catalog remembers. `options` outlives it.
  Residency(const TieredStoreOptions& options, const PolicyInfo& policy, LoadedRecords loaded);
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  // Finds the longest prefix of a list of keys, and leases it to `holder`.
  PrefixMatch Lookup(SpaceId space, std::span<const absl::string_view> keys, bool take_lease,
                     LeaseHolder holder = 0);
  // Tells the eviction policies the uses that Lookup left for after its answer. Any call that could
  // tell the difference does it first.
  void CatchUp();
  // Extends a lease to a full TTL from now; false when it has expired, is unknown, or is another
  // holder's.
  bool Renew(const NamedLease& lease);
  bool Release(const NamedLease& lease);
  absl::StatusOr<PageFacts> Find(const PageName& name);
  // Records that a prompt reached the page without a Lookup. Ignored when the page is not there.
  void Use(const PageName& name);
  absl::Status Pin(const PageName& name, bool pinned);

  // Covers one space, or the whole store (0). Of a space, tiers' budgets and leases are left 0.
  StoreUsage Usage(SpaceId space = 0);
  // By tenant, up to the largest number that has or had pages, or a share. Tiers' budgets and
  // leases are left 0.
  std::vector<StoreUsage> UsageByTenant();
  TenantShare ShareOf(TenantId tenant);
  StoreCounters Counters();
  // Returns the pages of a space (0 = all), for listing and verification.
  std::vector<PageName> Pages(SpaceId space);
  // Tells an observer all pages, as StoreObserver::Restart says. Takes the lock as long as Pages().
  void TellPages(StoreObserver& observer);
  // The same as references, oldest first.
  std::vector<PageRef> PageRefs(SpaceId space = 0);
  // Returns up to `max_pages` pages of a space (0 = all), by no order, from among 65,536 of the
  // store's pages. It stays quick where there are millions. No use of the pages.
  std::vector<PageSample> Sample(SpaceId space, size_t max_pages);
  // Recounts everything and compares it with the sums. Fails with INTERNAL, which names the
  // difference.
  absl::Status CheckInvariants();

  // Returns an id that no space ever had in this store; a new one at each call.
  SpaceId NewSpaceId();
  // Returns the tier's budget; 0 = the tier is not used.
  uint64_t budget(TierId t) const { return budgets_[static_cast<size_t>(t)]; }

  // Steps of the store's use cases. Nobody else calls the rest.

  // Returns nothing when the name has no page, or one of another number.
  std::optional<Copies> CopiesOf(const PageName& name, PageNumber number,
                                 std::span<const uint16_t> indices);
  // Returns the pages that are not on disk, or only in part.
  std::vector<PageRef> PagesNotOnDisk();
  // Lets pages of a space in. Fails with FAILED_PRECONDITION for an id that belongs to a space
  // whose record could not be read: its pages must not be taken for others. A space has one tenant
  // from its first page on.
  absl::Status AddSpace(SpaceId id, TenantId tenant = kOnlyTenant);
  // Lets no page of the space in from now on, and waits for puts that are under way.
  void DropSpace(SpaceId id);
  // Adds to the counters.
  void Count(absl::FunctionRef<void(StoreCounters&)> add);

 private:
  friend class Claim;
  friend class Erasures;
  friend class PendingName;
  friend class Room;
  friend class Rooms;

  void Recover(std::vector<PageRecord> pages) KVSTOW_REQUIRES(mu_);
  // A clock that goes back counts as one that stands still.
  uint32_t SecondsOpen() const;
  PageFacts FactsOf(const PageEntry& page) const;
  void ReapLeases() KVSTOW_REQUIRES(mu_);
  // The bytes that count against the budget.
  uint64_t Held(TierId t) const KVSTOW_REQUIRES(mu_);
  absl::Status CheckTenants() KVSTOW_REQUIRES(mu_);
  // Reserves room, and gives it back.
  void Reserve(TenantId tenant, const TierBytes& room) KVSTOW_REQUIRES(mu_);
  void Return(TenantId tenant, const TierBytes& room) KVSTOW_REQUIRES(mu_);
  // The page's copy on disk is forgotten. Nothing where there is none.
  void EraseLater(const PageEntry& page, size_t segments, uint64_t bytes, bool sync_first = false)
      KVSTOW_REQUIRES(mu_);

  const TieredStoreOptions& options_;
  const Time opened_ = options_.clock->Now();
  std::array<std::atomic<uint64_t>, kTiers> budgets_;  // change under the lock

  Mutex mu_;
  CondVar changed_;  // a mark ended, or the page of a mark changed
  PageIndex index_ KVSTOW_GUARDED_BY(mu_);
  LeaseTable leases_ KVSTOW_GUARDED_BY(mu_);
  Unerased unerased_ KVSTOW_GUARDED_BY(mu_);
  SpaceIds spaces_ KVSTOW_GUARDED_BY(mu_);
  absl::flat_hash_set<PageName> pending_ KVSTOW_GUARDED_BY(mu_);
  size_t claims_ KVSTOW_GUARDED_BY(mu_) = 0;
  TierBytes reserved_ KVSTOW_GUARDED_BY(mu_){};  // of all rooms
  TierBytes ceiling_ KVSTOW_GUARDED_BY(mu_){};   // these two: see CheckInvariants
  std::vector<TierBytes> tenant_ceilings_ KVSTOW_GUARDED_BY(mu_);
  PageNumber next_number_ KVSTOW_GUARDED_BY(mu_) = 1;
  StoreCounters counters_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_RESIDENCY_RESIDENCY_H_
