#include "storage/store/residency/page_index.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "storage/store/residency/placement.h"

namespace kvstow {
namespace {

void AddTo(StoreUsage& usage, const PageEntry& page, uint64_t sign) {
  usage.pages += sign;
  usage.index_bytes += sign * page.IndexBytes();
  usage.raw_bytes += sign * page.raw_bytes;
  usage.pinned_pages += page.pinned ? sign : 0;
  for (size_t i = 0; i < page.segment_count; ++i) {
    usage.encoded_bytes += sign * page.BytesOf(i);
    for (int t = 0; t < kTiers; ++t) {
      if (!page.segments()[i].tiers.Has(static_cast<TierId>(t))) continue;
      usage.tiers[t].segments += sign;
      usage.tiers[t].encoded_bytes += sign * page.BytesOf(i);
    }
  }
  TierUsage& home = usage.tiers[static_cast<size_t>(page.segments()[0].tiers.Hottest())];
  home.pages += sign;
  home.raw_bytes += sign * page.raw_bytes;
}

// Pages that lookups missed are put soon or not at all.
constexpr size_t kMaxExpected = 1 << 14;
constexpr size_t kMaxTouched = 1 << 14;

// Returns whether `page` may come right behind `parent` in a prompt.
bool Follows(const PageEntry& page, const PageEntry& parent) {
  return parent.item != page.item && parent.first_position + parent.tokens == page.first_position;
}

absl::Status Wrong(const PageEntry& page, absl::string_view what) {
  return absl::InternalError(absl::StrCat("page ", page.number, ": ", what));
}

absl::Status CheckPage(const PageEntry& page) {
  if (page.segment_count == 0) return Wrong(page, "has no segments");
  for (const PageEntry::Segment& segment : page.segments()) {
    if (segment.tiers.empty()) return Wrong(page, "a segment is in no tier");
  }
  for (size_t i = page.on_disk(); i < page.segment_count; ++i) {
    if (page.segments()[i].tiers.Has(TierId::kDisk)) {
      return Wrong(page, "what is on disk is no leading part");
    }
  }
  return absl::OkStatus();
}

absl::Status Compare(const StoreUsage& sums, const StoreUsage& counted, absl::string_view where) {
  if (sums == counted) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("usage of ", where, ": the sums say ", sums.encoded_bytes,
                                          " bytes in ", sums.pages, " pages, counted ",
                                          counted.encoded_bytes, " in ", counted.pages,
                                          " (or a tier's share differs)"));
}

}  // namespace

PageIndex::PageIndex(const PolicyInfo& policy, const std::array<uint64_t, kTiers>& budget_bytes,
                     IdOf id_of)
    : id_of_(id_of), seed_(uint64_t{std::random_device()()} << 32 | std::random_device()()) {
  const PolicyInfo* const lru = *FindEvictionPolicy("lru");
  for (int t = 0; t < kTiers; ++t) {
    policies_[t] = policy.make(budget_bytes[t]);
    hot_[t] = lru->make(budget_bytes[t]);
  }
}

PageIndex::~PageIndex() {
  for (PageEntry* const page : pages_) delete page;
}

uint64_t PageIndex::HashOf(const PageName& name) {
  return Xxh3(AsBytes(name.key)) + name.space * 0x9E3779B97F4A7C15u;
}

uint64_t PageIndex::IdFor(const PageName& name) const {
  if (!displaced_.empty()) {
    const auto it = displaced_.find(name);
    if (it != displaced_.end()) return it->second;
  }
  // Keys are the worker's choice, and HashOf is no secret: it may choose them to collide. What
  // comes next nobody can foresee, so that many such keys cost no more than others.
  uint64_t id = id_of_(name);
  for (uint64_t attempt = 0;; ++attempt) {
    if (id != PolicyItem::kNoParent) {
      const PageEntry* const page = FindById(id);
      if (page == nullptr || page->Has(name)) return id;
    }
    id = absl::HashOf(seed_, attempt, name.space, name.key);
  }
}

uint64_t PageIndex::ParentOf(const PageName& name, const std::string& parent_key) const {
  if (const auto it = expected_.find(IdFor(name)); it != expected_.end()) return it->second;
  return parent_key.empty() ? PolicyItem::kNoParent
                            : IdFor({.space = name.space, .key = parent_key});
}

PageEntry* PageIndex::FindById(uint64_t id) const {
  const auto it = pages_.find(id);
  return it == pages_.end() ? nullptr : *it;
}

PageEntry* PageIndex::Find(const PageName& name) const {
  PageEntry* const page = FindById(id_of_(name));  // nearly always that is it
  return page != nullptr && page->Has(name) ? page : FindById(IdFor(name));
}

PageEntry* PageIndex::Find(const PageRef& page) const {
  PageEntry* const found = FindById(page.item);
  return found != nullptr && found->number == page.number ? found : nullptr;
}

PageEntry* PageIndex::Insert(std::unique_ptr<PageEntry> page) {
  TellUses();
  PageEntry* const entry = page.get();
  const PageName name = entry->name();
  entry->item = IdFor(name);
  if (entry->item != id_of_(name)) displaced_[name] = entry->item;
  if (!(entry->put_gain > 0)) {
    for (const PageEntry::Segment& segment : entry->segments())
      entry->put_gain += segment.facts.gain;
  }
  const PageEntry* const parent = FindById(entry->parent);
  const bool wrong = parent != nullptr && !Follows(*entry, *parent);
  if (wrong || entry->parent == entry->item) entry->parent = PolicyItem::kNoParent;
  entry->reachable = Reachable(*entry);
  if (!entry->reachable) orphans_[entry->parent].push_back(entry->item);
  pages_.insert(page.release());
  Count(*entry, true);
  Tell(*entry, {}, ItemsOf(*entry), std::nullopt);
  // Those that came before it are worth something now.
  const auto orphans = orphans_.extract(entry->item);
  if (orphans.empty()) return entry;
  for (const uint64_t id : orphans.mapped()) SetReachable(*FindById(id), true);
  return entry;
}

std::unique_ptr<PageEntry> PageIndex::Remove(PageEntry* page, std::optional<TierId> by) {
  TellUses();
  Count(*page, false);
  Tell(*page, ItemsOf(*page), {}, by);
  if (const auto it = orphans_.find(page->parent); it != orphans_.end()) {
    std::erase(it->second, page->item);
    if (it->second.empty()) orphans_.erase(it);
  }
  if (!displaced_.empty()) displaced_.erase(page->name());
  pages_.erase(page);
  return std::unique_ptr<PageEntry>(page);
}

std::unique_ptr<PageEntry> PageIndex::Replace(PageEntry* old, std::unique_ptr<PageEntry> page) {
  TellUses();
  page->item = old->item;
  page->parent = old->parent;
  page->put_gain = old->put_gain;
  page->used_s = old->used_s;
  page->reachable = old->reachable;
  page->held = old->held;
  Count(*old, false);
  Count(*page, true);
  Tell(*page, ItemsOf(*old), ItemsOf(*page), std::nullopt);
  pages_.erase(old);
  pages_.insert(page.release());
  return std::unique_ptr<PageEntry>(old);
}

void PageIndex::Change(PageEntry* page, absl::FunctionRef<void(PageEntry&)> edit,
                       std::optional<TierId> by) {
  TellUses();
  const Items before = ItemsOf(*page);
  Count(*page, false);
  edit(*page);
  Count(*page, true);
  Tell(*page, before, ItemsOf(*page), by);
  OfferAgain(*page);
}

void PageIndex::EndLease(const PageRef& ref) {
  PageEntry* const page = Find(ref);
  if (page == nullptr) return;
  --page->leases;
  if (!page->is_protected()) OfferAgain(*page);
}

void PageIndex::SetBudget(TierId tier, uint64_t bytes) {
  TellUses();
  policies_[static_cast<size_t>(tier)]->SetCapacity(bytes);
  hot_[static_cast<size_t>(tier)]->SetCapacity(bytes);
  for (PageEntry* const page : pages_) OfferAgain(*page);
}

void PageIndex::OfferAgain(PageEntry& page) {
  if (!page.held) return;
  TellUses();
  page.held = false;
  for (const auto& policy : policies_) policy->Release(page.item);
  for (const auto& policy : hot_) policy->Release(page.item);
}

void PageIndex::Touch(PageEntry* page, uint32_t used_s) {
  page->used_s = used_s;
  const bool cold = page->segments()[0].tiers.Hottest() == TierId::kDisk;
  page->disk_uses = cold ? std::min(page->disk_uses + 1, 2) : 0;
  touched_.push_back(page);
  if (touched_.size() >= kMaxTouched) TellUses();
}

void PageIndex::TellUses() {
  const PageEntry* before = nullptr;  // in a prompt, the parent: then there is nothing to look up
  for (PageEntry* const page : touched_) {
    const bool behind = before != nullptr && page->parent == before->item;
    SetReachable(*page, behind || Reachable(*page));
    for (int t = 0; t < kTiers; ++t) {
      if (items_[t] == 0) continue;
      policies_[t]->Touch(page->item);
      if (page->hot) hot_[t]->Touch(page->item);
    }
    before = page;
  }
  touched_.clear();
}

void PageIndex::SetParent(PageEntry* page, const PageEntry& parent) {
  if (page->parent != PolicyItem::kNoParent || page->busy || !Follows(*page, parent)) return;
  TellUses();
  page->parent = parent.item;
  for (const auto& policy : policies_) policy->SetParent(page->item, parent.item);
}

void PageIndex::Expect(const PageName& name, const PageEntry& parent) {
  const uint64_t id = IdFor(name);
  if (!expected_.insert_or_assign(id, parent.item).second) return;
  expected_order_.push_back(id);
  if (expected_order_.size() <= kMaxExpected) return;
  expected_.erase(expected_order_.front());
  expected_order_.pop_front();
}

PageEntry* PageIndex::Victim(TierId tier, Consider consider) {
  return FromPolicy(*policies_[static_cast<size_t>(tier)], consider);
}

PageEntry* PageIndex::HotVictim(TierId tier, Consider consider) {
  return FromPolicy(*hot_[static_cast<size_t>(tier)], consider);
}

PageEntry* PageIndex::FromPolicy(EvictionPolicy& policy, Consider consider) {
  TellUses();
  std::vector<PageEntry*> held;
  const auto id = policy.Victim([&](uint64_t item) {
    PageEntry* const page = FindById(item);
    const Offer offer = consider(*page);
    if (offer == Offer::kHeld) held.push_back(page);
    return offer == Offer::kTaken;
  });
  for (PageEntry* const page : held) {
    policy.Hold(page->item);
    page->held = true;
  }
  return id.has_value() ? FindById(*id) : nullptr;
}

bool PageIndex::Reachable(const PageEntry& page) const {
  return page.parent == PolicyItem::kNoParent || pages_.contains(page.parent);
}

void PageIndex::SetReachable(PageEntry& page, bool reachable) {
  if (page.reachable == reachable) return;
  const Items before = ItemsOf(page);
  page.reachable = reachable;
  Tell(page, before, ItemsOf(page), std::nullopt);
}

PageIndex::Items PageIndex::ItemsOf(const PageEntry& page) {
  Items items{.in = {}, .hot = page.hot};
  for (const TierId tier : kAllTiers) {
    const size_t keep = page.KeepIn(tier), n = page.segment_count;
    PagePart here, next;
    bool any = false;
    for (size_t i = 0; i < n; ++i) {
      if (!page.segments()[i].tiers.Has(tier)) continue;
      any = true;
      here.bytes += page.BytesOf(i);
      if (i < keep) continue;
      next.bytes += page.BytesOf(i);
      next.gain += page.segments()[i].facts.gain;
    }
    if (!any) continue;
    const PagePart all{.bytes = page.BytesOf(0, n), .gain = page.put_gain};
    items.in[static_cast<size_t>(tier)] =
        PolicyItem{.bytes = here.bytes,
                   .worth = page.reachable ? WorthOf(next, all, page.raw_bytes) : 0,
                   .parent = page.parent};
  }
  return items;
}

void PageIndex::Tell(const PageEntry& page, const Items& before, const Items& after,
                     std::optional<TierId> by) {
  for (int t = 0; t < kTiers; ++t) {
    const std::optional<PolicyItem>&had = before.in[t], &has = after.in[t];
    if (!had.has_value() && !has.has_value()) continue;
    EvictionPolicy& policy = *policies_[t];
    if (!had.has_value()) {
      policy.Insert(page.item, *has);
      ++items_[t];
    } else if (!has.has_value()) {
      policy.Remove(page.item, by == static_cast<TierId>(t));
      --items_[t];
    } else if (had->bytes != has->bytes || had->worth != has->worth) {
      policy.Resize(page.item, has->bytes, has->worth);
    }
    const bool was_hot = before.hot && had.has_value(), is_hot = after.hot && has.has_value();
    if (is_hot && !was_hot) hot_[t]->Insert(page.item, *has);
    if (was_hot && !is_hot) hot_[t]->Remove(page.item, false);
  }
}

StoreUsage PageIndex::usage(SpaceId space) const {
  const auto it = by_space_.find(space);
  return it == by_space_.end() ? StoreUsage{} : it->second;
}

void PageIndex::ForEach(absl::FunctionRef<void(const PageEntry&)> visit) const {
  for (const PageEntry* const page : pages_) visit(*page);
}

void PageIndex::ForSome(size_t max, absl::FunctionRef<void(const PageEntry&)> visit) const {
  for (auto it = pages_.begin(); it != pages_.end() && max > 0; ++it, --max) visit(**it);
}

void PageIndex::Count(const PageEntry& page, bool in) {
  const uint64_t sign = in ? 1 : ~uint64_t{0};  // unsigned sums wrap: adding -1 takes one away
  AddTo(usage_, page, sign);
  StoreUsage& space = by_space_[page.space];
  AddTo(space, page, sign);
  if (space.pages == 0) by_space_.erase(page.space);
}

absl::Status PageIndex::CheckInvariants() const {
  StoreUsage all;
  absl::flat_hash_map<SpaceId, StoreUsage> spaces;
  std::array<size_t, kTiers> items{};
  absl::flat_hash_set<PageNumber> numbers;
  for (const PageEntry* const page : pages_) {
    if (absl::Status s = CheckPage(*page); !s.ok()) return s;
    AddTo(all, *page, 1);
    AddTo(spaces[page->space], *page, 1);
    if (FindById(IdFor(page->name())) != page) return Wrong(*page, "is under a wrong id");
    if (!numbers.insert(page->number).second) return Wrong(*page, "shares its number");
    const Items in = ItemsOf(*page);
    for (int t = 0; t < kTiers; ++t) items[t] += in.in[t].has_value() ? 1 : 0;
  }
  if (items != items_) return absl::InternalError("a policy lists lost pages");
  if (spaces.size() != by_space_.size()) return absl::InternalError("a space without pages");
  for (const auto& [id, counted] : spaces) {
    if (absl::Status s = Compare(usage(id), counted, absl::StrCat("space ", id)); !s.ok()) return s;
  }
  return Compare(usage_, all, "the store");
}

}  // namespace kvstow
