// The page index: the stored pages, the tiers of each segment, and the next victims. All in RAM.
//
// The index keeps its sums up to date. Every change goes through Insert, Remove, Replace or Change,
// which count the page out and in again, so usage() is exact at all times. Not thread-safe:
// Residency's lock guards it, and callers follow pointers to entries only under that lock.
//
// Each tier has an eviction policy for each tenant, and the same calls keep the policies up to
// date. So a policy chooses within the tenant that pays (Tenants), and what one tenant does teaches
// the policies of others nothing. A space belongs to one tenant. An item is a page that has bytes
// in the tier. Its worth is that of the last segment there (of all segments, for a `whole` page).
// Its worth is 0 while the previous page of its prompt is not stored. A policy knows a page by its
// id, a hash of its name, so it recognises a page that comes back. Callers that know the order of
// keys tell the previous page (PageEntry::parent, SetParent, Expect). That page must end where this
// one begins.
//
// `busy` gives a page to one thread. Only the thread that set it may change where the page's
// segments are, remove the page, or clear the flag. That thread holds it across I/O in place of the
// lock. Readers ignore it.
#ifndef KVSTOW_STORAGE_STORE_RESIDENCY_PAGE_INDEX_H_
#define KVSTOW_STORAGE_STORE_RESIDENCY_PAGE_INDEX_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "storage/policies/eviction_policy.h"
#include "storage/segment.h"
#include "storage/store/residency/page_entry.h"
#include "storage/store/residency/tenants.h"
#include "storage/store/residency/usage.h"

namespace kvstow {

class PageIndex {
 public:
  // The answer to an offer of a page as a victim. The index does not offer a held page again before
  // its last lease ends, or its place, its pin or another fact of it changes.
  enum class Offer { kTaken, kNotNow, kHeld };
  using Consider = absl::FunctionRef<Offer(const PageEntry&)>;
  using IdOf = uint64_t (*)(const PageName&);
  static uint64_t HashOf(const PageName& name);

  // `id_of` may have collisions. When names collide, all but the first get an id made with a secret
  // of this index.
  PageIndex(const PolicyInfo& policy, const std::array<uint64_t, kTiers>& budget_bytes,
            IdOf id_of = &HashOf);
  ~PageIndex();
  PageIndex(const PageIndex&) = delete;
  PageIndex& operator=(const PageIndex&) = delete;

  PageEntry* Find(const PageName& name) const;
  PageEntry* Find(const PageRef& page) const;
  // Adds a page. Its name must be new. The result lives until it is removed.
  PageEntry* Insert(std::unique_ptr<PageEntry> page);
  // Removes a page. `by` is the tier whose policy wanted it, if any did.
  std::unique_ptr<PageEntry> Remove(PageEntry* page, std::optional<TierId> by = std::nullopt);
  // Replaces a page by another coding of it, which is no use of the page. Returns the old entry.
  std::unique_ptr<PageEntry> Replace(PageEntry* old, std::unique_ptr<PageEntry> page);
  // Changes a page. `edit` may change anything but the page's name and its parent.
  void Change(PageEntry* page, absl::FunctionRef<void(PageEntry&)> edit,
              std::optional<TierId> by = std::nullopt);

  // Touch records that a prompt reached the page, at `used_s`. TellUses tells the policies, which
  // costs more than finding the page. Every call that could tell the difference runs TellUses
  // first.
  void Touch(PageEntry* page, uint32_t used_s);
  void TellUses();
  // Records that `parent` comes before `page` in a prompt. Ignored when that cannot be, another
  // parent is known, or the page is busy.
  void SetParent(PageEntry* page, const PageEntry& parent);
  // Records that a page of this name, which is not here, would follow `parent`. The index remembers
  // that for a while.
  void Expect(const PageName& name, const PageEntry& parent);
  // Returns the page before a new one of this name: what Expect was told, else that of
  // `parent_key`, else kNoParent.
  uint64_t ParentOf(const PageName& name, const std::string& parent_key) const;
  // Returns the id that a page of this name has or would get.
  uint64_t IdFor(const PageName& name) const;

  // Victim returns the page of the tenant that `tier` frees bytes of next, and HotVictim the next
  // of its hot pages: the first that `consider` takes. Each page that it does not take costs a
  // step.
  PageEntry* Victim(TierId tier, Consider consider, TenantId tenant = kOnlyTenant);
  PageEntry* HotVictim(TierId tier, Consider consider, TenantId tenant = kOnlyTenant);
  // Tells the tier's policies its new budget, and offers held pages again. `guaranteed_part`: see
  // Tenants.
  void SetBudget(TierId tier, uint64_t bytes, double guaranteed_part = 1);

  // Sets the tenant of a space that has no pages yet. Otherwise it is kOnlyTenant.
  void SetTenant(SpaceId space, TenantId tenant);
  TenantId TenantOf(SpaceId space) const;
  // What depends on what tenants have of the pages is kept up to date here.
  Tenants& tenants() { return tenants_; }
  const Tenants& tenants() const { return tenants_; }
  // Ends one of the leases of a page. Does nothing when the page is gone.
  void EndLease(const PageRef& page);

  uint64_t bytes(TierId tier) const {
    return usage_.tiers[static_cast<size_t>(tier)].encoded_bytes;
  }
  size_t size() const { return pages_.size(); }
  // Leaves budgets and leases 0.
  const StoreUsage& usage() const { return usage_; }
  StoreUsage usage(SpaceId space) const;
  void ForEach(absl::FunctionRef<void(const PageEntry&)> visit) const;
  // Visits at most `max` pages, in the order of hashes. Neither age nor use decides which.
  void ForSome(size_t max, absl::FunctionRef<void(const PageEntry&)> visit) const;

  // Recounts everything. Fails with INTERNAL, which names the difference.
  absl::Status CheckInvariants() const;

 private:
  // The policies' view of a page.
  struct Items {
    std::array<std::optional<PolicyItem>, kTiers> in;
    bool hot = false;
  };
  // The eviction policies of a tenant. They are made when its first page comes.
  struct Order {
    std::array<std::unique_ptr<EvictionPolicy>, kTiers> policies;
    std::array<std::unique_ptr<EvictionPolicy>, kTiers> hot;  // LRU, of hot pages
    std::array<size_t, kTiers> items{};                       // of each policy
    std::array<uint64_t, kTiers> capacity{};                  // that they were told
  };
  static Items ItemsOf(const PageEntry& page);
  Order& OrderOf(TenantId tenant);
  void SetCapacities();
  absl::Status CheckTenants() const;
  void Count(const PageEntry& page, bool in);
  void Tell(const PageEntry& page, const Items& before, const Items& after,
            std::optional<TierId> by);
  bool Reachable(const PageEntry& page) const;
  void SetReachable(PageEntry& page, bool reachable);
  PageEntry* FindById(uint64_t id) const;
  PageEntry* FromPolicy(EvictionPolicy* policy, Consider consider);
  void OfferAgain(PageEntry& page);

  // Hashes and compares pages by item. The set holds one pointer a page; a map would hold the item
  // once more.
  struct ByItem {
    using is_transparent = void;
    static uint64_t Of(uint64_t item) { return item; }
    static uint64_t Of(const PageEntry* page) { return page->item; }
    size_t operator()(const auto& a) const { return absl::Hash<uint64_t>()(Of(a)); }
    bool operator()(const auto& a, const auto& b) const { return Of(a) == Of(b); }
  };

  const PolicyInfo& policy_;
  const PolicyInfo& lru_;
  const IdOf id_of_;
  const uint64_t seed_;                                    // of the ids of names that collide
  absl::flat_hash_set<PageEntry*, ByItem, ByItem> pages_;  // owned
  absl::flat_hash_map<PageName, uint64_t> displaced_;      // ids of names whose own id was taken
  // orphans_: pages whose parent was not here when they came, by the parent's id. expected_: what
  // Expect was told.
  absl::flat_hash_map<uint64_t, absl::flat_hash_set<uint64_t>> orphans_;
  absl::flat_hash_map<uint64_t, uint64_t> expected_;
  std::deque<uint64_t> expected_order_;
  std::vector<PageEntry*> touched_;                   // in order; the policies have not been told
  std::vector<Order> orders_;                         // by tenant
  absl::flat_hash_map<SpaceId, TenantId> tenant_of_;  // of those that are not kOnlyTenant's
  Tenants tenants_;
  size_t told_tenants_ = 1;  // Tenants::known() when the policies were told their capacities
  StoreUsage usage_;
  absl::flat_hash_map<SpaceId, StoreUsage> by_space_;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_RESIDENCY_PAGE_INDEX_H_
