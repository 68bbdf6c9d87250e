// The inside of TieredStore; only storage/*.cc include this.
//
// One mutex guards the index, the leases and the sums; no I/O happens under it. Marks stand for
// work under way: a name that is being put is `pending`, a page whose segments are moving is
// claimed (PageEntry::busy), and bytes on their way into or out of a tier are `reserved` there. So
// a budget holds at every moment: index + reserved bytes, and on disk also the bytes still to be
// erased there, are <= budget, or become fewer.
//
// The holder of a claim or a reservation waits for nobody who might wait for it. No thread waits
// for a claim while it holds one. Only Put waits for room, hotter tiers before colder ones.
#ifndef KVSTOW_STORAGE_STORE_STORE_IMPL_H_
#define KVSTOW_STORAGE_STORE_STORE_IMPL_H_

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "base/mutex.h"
#include "storage/store/lease_table.h"
#include "storage/store/page_claim.h"
#include "storage/store/page_index.h"
#include "storage/store/space_ids.h"
#include "storage/store/tiered_store.h"
#include "storage/store/unerased.h"

namespace kvstow {

class TieredStore::Impl {
 public:
  Impl(TieredStoreOptions options, const PolicyInfo& policy, TieredStoreParts parts);
  ~Impl();

  // recovery.cc
  absl::Status Recover();
  absl::Status SaveSpace(const SpaceRecord& space);
  std::vector<SpaceRecord> RecoveredSpaces();
  SpaceId NewSpaceId();

  // store_put.cc
  absl::StatusOr<PutOutcome> Put(PageToStore page);
  absl::Status Flush();

  absl::Status KeepIndexWithin() KVSTOW_EXCLUDES(mu_);

  // store_erase.cc
  absl::Status Delete(const PageName& name, bool force);
  absl::Status Drop(const PageName& name, PageNumber number);
  absl::Status DropSpace(SpaceId space);

  // store_read.cc
  PrefixMatch Lookup(SpaceId space, std::span<const absl::string_view> keys, bool take_lease);
  void CatchUp();
  bool Renew(LeaseId lease);
  bool Release(LeaseId lease);
  absl::StatusOr<PageFacts> Find(const PageName& name);
  void Use(const PageName& name);
  std::vector<absl::StatusOr<SharedBytes>> Read(const PageName& name, PageNumber number,
                                                std::span<const uint16_t> indices, Checks checks);
  absl::Status Pin(const PageName& name, bool pinned);
  absl::Status SetGains(const PageName& name, PageNumber number, std::span<const float> gains);
  StoreUsage Usage();
  StoreUsage Usage(SpaceId space);
  StoreCounters Counters();
  std::vector<PageName> Pages(SpaceId space);
  void TellPages(StoreObserver& observer);
  std::vector<PageSample> Sample(SpaceId space, size_t max_pages);
  absl::Status CheckInvariants();
  void SetMakeColdForm(MakeColdForm make_cold_form);  // cold_form.cc
  std::vector<PageRef> PageRefs();                    // scrubber.cc
  uint64_t Scrub(const PageRef& page);
  absl::Status Examine(const PageName& name, PageNumber number);

  // demoter.cc
  absl::Status Shrink(TierId tier, uint64_t bytes);
  absl::Status SetBudget(TierId tier, uint64_t bytes);
  void RunDemotion();
  void StartBackground();

 private:
  using Claim = PageClaim<Impl>;
  friend Claim;
  enum class Why { kPolicy, kDamage, kDelete };
  enum class Wait { kNo, kYes };

  Tier& tier(TierId t) const { return *parts_.tiers[static_cast<size_t>(t)]; }
  uint64_t budget(TierId t) const { return budgets_[static_cast<size_t>(t)]; }
  uint32_t SecondsOpen() const;
  bool usable(TierId t) const { return budget(t) > 0 && tier(t).holds_bytes(); }

  // Claims. EndClaim accepts null for a page that is gone.
  std::optional<Claim> ClaimPage(const PageRef& page, Wait wait) KVSTOW_EXCLUDES(mu_);
  std::optional<Claim> ClaimNumber(const PageName& name, PageNumber number) KVSTOW_EXCLUDES(mu_);
  Claim Begin(PageEntry* page) KVSTOW_REQUIRES(mu_);
  void EndClaim(PageEntry* page) KVSTOW_EXCLUDES(mu_);

  // Room.
  bool Reserve(TierId t, uint64_t bytes, Wait wait) KVSTOW_EXCLUDES(mu_);
  void Unreserve(TierId t, uint64_t bytes) KVSTOW_EXCLUDES(mu_);
  bool CoolUntil(TierId t, uint64_t limit, uint64_t reserve, Wait wait) KVSTOW_EXCLUDES(mu_);
  void ReapLeases() KVSTOW_REQUIRES(mu_);
  uint64_t& reserved(TierId t) KVSTOW_REQUIRES(mu_) { return reserved_[static_cast<size_t>(t)]; }
  uint64_t Held(TierId t) const KVSTOW_REQUIRES(mu_);

  // Removals from disk. A page that left the store is gone from disk only after them.
  void EraseLater(const PageEntry& page, size_t segments, uint64_t bytes, bool sync_first = false)
      KVSTOW_REQUIRES(mu_);
  absl::Status EraseNow() KVSTOW_EXCLUDES(mu_);
  absl::Status EraseNow(const PageName& name) KVSTOW_EXCLUDES(mu_);
  std::vector<PageRef> PagesOf(SpaceId space) KVSTOW_EXCLUDES(mu_);

  // Cooling: a claimed page whose segments [keep, end) leave a tier.
  struct Step {
    Claim claim;
    size_t keep;
  };
  std::optional<Step> PickStep(TierId from, const absl::flat_hash_set<PageNumber>& skip)
      KVSTOW_REQUIRES(mu_);
  bool MayLeave(const PageEntry& page, TierId from, size_t keep) const;
  bool CoolMemory(TierId from, Step& step);
  bool CoolDisk(Step& step);

  // Hot pages: cold_form.cc.
  std::optional<Claim> PickHot(TierId from, const absl::flat_hash_set<PageNumber>& skip)
      KVSTOW_REQUIRES(mu_);
  bool Cool(Claim& claim);
  bool WriteCold(const PageEntry& page, std::span<const SharedBytes> bodies);
  bool Swap(Claim& claim, std::unique_ptr<PageEntry> cold);
  void EraseInMemory(const PageEntry& page);
  std::array<uint64_t, kTiers> BytesByTier() const KVSTOW_REQUIRES(mu_);

  // Moves, by the holder of the claim. Afterwards the page may be gone.
  absl::Status CopyColder(Claim& claim, TierId from, size_t keep);
  absl::Status CopyToHost(Claim& claim, std::span<const uint16_t> indices);
  absl::Status WriteThrough(Claim& claim, size_t end, Ack ack);
  void DropCopies(Claim& claim, TierId from, std::span<const uint16_t> indices,
                  std::optional<TierId> by = std::nullopt);
  absl::Status Truncate(Claim& claim, size_t keep, Why why,
                        std::optional<TierId> by = std::nullopt);
  std::vector<absl::StatusOr<SharedBytes>> ReadClaimed(Claim& claim,
                                                       std::span<const uint16_t> indices);
  // A copy of a segment that proved missing or damaged.
  struct BadCopy {
    uint16_t index;
    TierId tier;
  };
  void DropBad(Claim& claim, std::span<const BadCopy> bad, size_t keep);
  uint64_t VerifyCopies(Claim& claim);
  // Parts of Put.
  struct NameTaken {
    PutOutcome outcome = PutOutcome::kConflict;
    PageRef page;                             // for a new page the number only
    uint64_t parent = PolicyItem::kNoParent;  // for a new page
  };
  absl::StatusOr<NameTaken> TakeName(const PageToStore& page);
  std::optional<absl::Status> KeepPromise(const PageRef& page, Ack ack);
  absl::StatusOr<TierSet> StoreBodies(const PageEntry& page, std::span<const SharedBytes> bodies,
                                      Ack ack);
  absl::Status CheckFits(uint64_t bytes, Ack ack) const;
  absl::StatusOr<TierId> StoreInMemory(std::span<const SegmentBody> bodies, uint64_t bytes);
  absl::Status StoreOnDisk(const PageEntry& page, std::span<const SegmentBody> bodies,
                           uint64_t bytes, Ack ack);
  void Promote(const PageRef& page, std::span<const uint16_t> indices,
               std::span<const absl::StatusOr<SharedBytes>> bodies);
  PageFacts FactsOf(const PageEntry& page) const;

  const TieredStoreOptions options_;
  const Time opened_ = options_.clock->Now();
  const TieredStoreParts parts_;
  std::array<std::atomic<uint64_t>, kTiers> budgets_;  // change under the lock

  Mutex mu_;
  CondVar changed_;  // a claim or a reservation ended, a put was published or failed
  CondVar wake_;     // the background has something to do
  PageIndex index_ KVSTOW_GUARDED_BY(mu_);
  LeaseTable leases_ KVSTOW_GUARDED_BY(mu_);
  absl::flat_hash_set<PageName> pending_ KVSTOW_GUARDED_BY(mu_);
  Unerased unerased_ KVSTOW_GUARDED_BY(mu_);
  std::array<uint64_t, kTiers> reserved_ KVSTOW_GUARDED_BY(mu_){};
  std::array<uint64_t, kTiers> ceiling_ KVSTOW_GUARDED_BY(mu_){};  // see CheckInvariants
  size_t claims_ KVSTOW_GUARDED_BY(mu_) = 0;
  PageNumber next_number_ KVSTOW_GUARDED_BY(mu_) = 1;
  StoreCounters counters_ KVSTOW_GUARDED_BY(mu_);
  std::vector<SpaceRecord> recovered_spaces_ KVSTOW_GUARDED_BY(mu_);
  SpaceIds spaces_ KVSTOW_GUARDED_BY(mu_);
  std::shared_ptr<const MakeColdForm> make_cold_form_ KVSTOW_GUARDED_BY(mu_);  // null = none
  bool stop_ KVSTOW_GUARDED_BY(mu_) = false;
  std::thread background_;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_STORE_IMPL_H_
