// The page index: what is stored, where each segment is, and what goes next. All in RAM.
//
// It keeps its sums up to date: every change goes through Insert, Remove, Replace or Change, which
// count the page out and in again, so Usage() is exact at all times. Not thread-safe: the store's
// lock guards it, and pointers to entries are only followed under that lock.
//
// Each tier has an eviction policy, and the same calls keep those up to date: an item is a page
// that has bytes in the tier; its worth is that of the last segment there (of all, for a `whole`
// page), and nothing while the page before it in its prompt is not stored. A policy knows a page by
// its id, a hash of its name, so that it knows one again that comes back. The page before it is
// told by whoever knows the order of keys (PageEntry::parent, SetParent, Expect); it must end where
// the page begins.
//
// `busy` makes a page the business of one thread: only the thread that set it may change where the
// page's segments are, remove the page, or clear the flag. It is held across I/O in place of the
// lock. Readers do not mind it.
#ifndef KVSTOW_STORAGE_STORE_PAGE_INDEX_H_
#define KVSTOW_STORAGE_STORE_PAGE_INDEX_H_

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
#include "storage/store/page_entry.h"
#include "storage/store/usage.h"

namespace kvstow {

class PageIndex {
 public:
  // What becomes of a page that is offered as a victim. One that is held is not offered again
  // before its last lease ends, or where it is, its pin or another fact of it changes.
  enum class Offer { kTaken, kNotNow, kHeld };
  using Consider = absl::FunctionRef<Offer(const PageEntry&)>;
  using IdOf = uint64_t (*)(const PageName&);
  static uint64_t HashOf(const PageName& name);

  // `id_of` need not be free of collisions: of names that collide, all but the first have an id
  // that a secret of this index goes into.
  PageIndex(const PolicyInfo& policy, const std::array<uint64_t, kTiers>& budget_bytes,
            IdOf id_of = &HashOf);
  ~PageIndex();
  PageIndex(const PageIndex&) = delete;
  PageIndex& operator=(const PageIndex&) = delete;

  PageEntry* Find(const PageName& name) const;
  PageEntry* Find(const PageRef& page) const;
  // The name must be new. The result lives until it is removed.
  PageEntry* Insert(std::unique_ptr<PageEntry> page);
  // `by`: the tier whose policy wanted it, if any did.
  std::unique_ptr<PageEntry> Remove(PageEntry* page, std::optional<TierId> by = std::nullopt);
  // Another coding of the same page, which is no use of it. Answers the old entry.
  std::unique_ptr<PageEntry> Replace(PageEntry* old, std::unique_ptr<PageEntry> page);
  // `edit` may change anything but what names the page and its parent.
  void Change(PageEntry* page, absl::FunctionRef<void(PageEntry&)> edit,
              std::optional<TierId> by = std::nullopt);

  // A prompt reached the page, at PageEntry::used_s. The policies are told by TellUses, which every
  // call that could tell the difference does first: telling them costs more than finding the page.
  void Touch(PageEntry* page, uint32_t used_s);
  void TellUses();
  // `parent` comes before `page` in a prompt; ignored when that cannot be, another is known, or the
  // page is busy.
  void SetParent(PageEntry* page, const PageEntry& parent);
  // A page of this name, which is not here, would come behind `parent`. Remembered for a while.
  void Expect(const PageName& name, const PageEntry& parent);
  // The page that comes before a new one of this name: what Expect was told, else that of
  // `parent_key`, else kNoParent.
  uint64_t ParentOf(const PageName& name, const std::string& parent_key) const;
  // The id that a page of this name has or would get.
  uint64_t IdFor(const PageName& name) const;

  // The page that `tier` frees bytes of next, and that of those that are hot: the first that is
  // taken. Each that is not costs a step.
  PageEntry* Victim(TierId tier, Consider consider);
  PageEntry* HotVictim(TierId tier, Consider consider);
  // The tier's budget has changed: its policies go by it, and pages that were held are offered
  // again.
  void SetBudget(TierId tier, uint64_t bytes);
  // One of the leases of a page has ended; nothing when the page is gone.
  void EndLease(const PageRef& page);

  uint64_t bytes(TierId tier) const {
    return usage_.tiers[static_cast<size_t>(tier)].encoded_bytes;
  }
  size_t size() const { return pages_.size(); }
  // Budgets and leases are left 0.
  const StoreUsage& usage() const { return usage_; }
  StoreUsage usage(SpaceId space) const;
  void ForEach(absl::FunctionRef<void(const PageEntry&)> visit) const;
  // At most `max` pages, in the order of hashes: neither age nor use has a part in which.
  void ForSome(size_t max, absl::FunctionRef<void(const PageEntry&)> visit) const;

  // Recounts everything; INTERNAL names what differs.
  absl::Status CheckInvariants() const;

 private:
  // What policies know of a page.
  struct Items {
    std::array<std::optional<PolicyItem>, kTiers> in;
    bool hot = false;
  };
  static Items ItemsOf(const PageEntry& page);
  void Count(const PageEntry& page, bool in);
  void Tell(const PageEntry& page, const Items& before, const Items& after,
            std::optional<TierId> by);
  bool Reachable(const PageEntry& page) const;
  void SetReachable(PageEntry& page, bool reachable);
  PageEntry* FindById(uint64_t id) const;
  PageEntry* FromPolicy(EvictionPolicy& policy, Consider consider);
  void OfferAgain(PageEntry& page);

  // By item: a pointer a page, where a map would hold the item once more.
  struct ByItem {
    using is_transparent = void;
    static uint64_t Of(uint64_t item) { return item; }
    static uint64_t Of(const PageEntry* page) { return page->item; }
    size_t operator()(const auto& a) const { return absl::Hash<uint64_t>()(Of(a)); }
    bool operator()(const auto& a, const auto& b) const { return Of(a) == Of(b); }
  };

  const IdOf id_of_;
  const uint64_t seed_;                                    // of the ids of names that collide
  absl::flat_hash_set<PageEntry*, ByItem, ByItem> pages_;  // which it owns
  absl::flat_hash_map<PageName, uint64_t> displaced_;      // ids of those whose own was taken
  // Pages whose parent was not here when they came, by its id; and what Expect was told.
  absl::flat_hash_map<uint64_t, std::vector<uint64_t>> orphans_;
  absl::flat_hash_map<uint64_t, uint64_t> expected_;
  std::deque<uint64_t> expected_order_;
  std::vector<PageEntry*> touched_;  // in order; the policies have not been told
  std::array<std::unique_ptr<EvictionPolicy>, kTiers> policies_;
  std::array<std::unique_ptr<EvictionPolicy>, kTiers> hot_;  // LRU, of hot pages
  std::array<size_t, kTiers> items_{};                       // of each policy
  StoreUsage usage_;
  absl::flat_hash_map<SpaceId, StoreUsage> by_space_;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_PAGE_INDEX_H_
