#include "storage/store/residency/page_index.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "storage/store/residency/placement.h"

namespace kvstow {
namespace {

StoreUsage UsageOf(const PageEntry& page) {
  StoreUsage usage;
  usage.pages = 1;
  usage.index_bytes = page.IndexBytes();
  usage.raw_bytes = page.raw_bytes;
  usage.pinned_pages = page.pinned ? 1 : 0;
  for (size_t i = 0; i < page.segment_count; ++i) {
    usage.encoded_bytes += page.BytesOf(i);
    for (int t = 0; t < kTiers; ++t) {
      if (!page.segments()[i].tiers.Has(static_cast<TierId>(t))) continue;
      usage.tiers[t].segments += 1;
      usage.tiers[t].encoded_bytes += page.BytesOf(i);
    }
  }
  TierUsage& home = usage.tiers[static_cast<size_t>(page.segments()[0].tiers.Hottest())];
  home.pages = 1;
  home.raw_bytes = page.raw_bytes;
  return usage;
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
    : policy_(policy),
      lru_(**FindEvictionPolicy("lru")),
      id_of_(id_of),
      seed_(uint64_t{std::random_device()()} << 32 | std::random_device()()),
      tenants_(budget_bytes) {}

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
  if (!entry->reachable) orphans_[entry->parent].insert(entry->item);
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
  tenants_.Settle(TenantOf(page->space));
  Tell(*page, ItemsOf(*page), {}, by);
  if (const auto it = orphans_.find(page->parent); it != orphans_.end()) {
    it->second.erase(page->item);
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

void PageIndex::SetBudget(TierId tier, uint64_t bytes, double guaranteed_part) {
  TellUses();
  tenants_.SetBudget(tier, bytes, guaranteed_part);
  const auto t = static_cast<size_t>(tier);
  for (TenantId tenant = 0; tenant < orders_.size(); ++tenant) {
    Order& order = orders_[tenant];
    if (order.policies[t] == nullptr) continue;
    order.capacity[t] = tenants_.CapacityOf(tenant, tier);
    order.policies[t]->SetCapacity(order.capacity[t]);
    order.hot[t]->SetCapacity(order.capacity[t]);
  }
  for (PageEntry* const page : pages_) OfferAgain(*page);
}

void PageIndex::SetTenant(SpaceId space, TenantId tenant) {
  if (tenant == kOnlyTenant) {
    tenant_of_.erase(space);
  } else {
    tenant_of_[space] = tenant;
  }
}

TenantId PageIndex::TenantOf(SpaceId space) const {
  if (tenant_of_.empty()) return kOnlyTenant;
  const auto it = tenant_of_.find(space);
  return it == tenant_of_.end() ? kOnlyTenant : it->second;
}

PageIndex::Order& PageIndex::OrderOf(TenantId tenant) {
  if (tenant >= orders_.size()) orders_.resize(tenant + 1);
  return orders_[tenant];
}

// A policy forgets what it has learned when its capacity changes, and looks at all its items. So
// those of tenants are told about new ones only when that doubles or halves what they have.
void PageIndex::SetCapacities() {
  told_tenants_ = tenants_.known();
  for (TenantId tenant = 0; tenant < orders_.size(); ++tenant) {
    Order& order = orders_[tenant];
    for (const TierId tier : kAllTiers) {
      const auto t = static_cast<size_t>(tier);
      if (order.policies[t] == nullptr) continue;
      const uint64_t has = order.capacity[t], gets = tenants_.CapacityOf(tenant, tier);
      if (gets / 2 < has && has / 2 < gets) continue;
      order.capacity[t] = gets;
      order.policies[t]->SetCapacity(gets);
      order.hot[t]->SetCapacity(gets);
    }
  }
}

void PageIndex::OfferAgain(PageEntry& page) {
  if (!page.held) return;
  TellUses();
  page.held = false;
  const Order& order = OrderOf(TenantOf(page.space));
  for (int t = 0; t < kTiers; ++t) {
    if (order.policies[t] == nullptr) continue;
    order.policies[t]->Release(page.item);
    order.hot[t]->Release(page.item);
  }
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
    const Order& order = OrderOf(TenantOf(page->space));
    for (int t = 0; t < kTiers; ++t) {
      if (order.items[t] == 0) continue;
      order.policies[t]->Touch(page->item);
      if (page->hot) order.hot[t]->Touch(page->item);
    }
    before = page;
  }
  touched_.clear();
}

void PageIndex::SetParent(PageEntry* page, const PageEntry& parent) {
  if (page->parent != PolicyItem::kNoParent || page->busy || !Follows(*page, parent)) return;
  TellUses();
  page->parent = parent.item;
  for (const auto& policy : OrderOf(TenantOf(page->space)).policies) {
    if (policy != nullptr) policy->SetParent(page->item, parent.item);
  }
}

void PageIndex::Expect(const PageName& name, const PageEntry& parent) {
  const uint64_t id = IdFor(name);
  if (!expected_.insert_or_assign(id, parent.item).second) return;
  expected_order_.push_back(id);
  if (expected_order_.size() <= kMaxExpected) return;
  expected_.erase(expected_order_.front());
  expected_order_.pop_front();
}

PageEntry* PageIndex::Victim(TierId tier, Consider consider, TenantId tenant) {
  return FromPolicy(OrderOf(tenant).policies[static_cast<size_t>(tier)].get(), consider);
}

PageEntry* PageIndex::HotVictim(TierId tier, Consider consider, TenantId tenant) {
  return FromPolicy(OrderOf(tenant).hot[static_cast<size_t>(tier)].get(), consider);
}

PageEntry* PageIndex::FromPolicy(EvictionPolicy* policy, Consider consider) {
  if (policy == nullptr) return nullptr;
  TellUses();
  if (told_tenants_ < tenants_.known()) SetCapacities();
  std::vector<PageEntry*> held;
  const auto id = policy->Victim([&](uint64_t item) {
    PageEntry* const page = FindById(item);
    const Offer offer = consider(*page);
    if (offer == Offer::kHeld) held.push_back(page);
    return offer == Offer::kTaken;
  });
  for (PageEntry* const page : held) {
    policy->Hold(page->item);
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
  const TenantId tenant = TenantOf(page.space);
  Order& order = OrderOf(tenant);
  for (int t = 0; t < kTiers; ++t) {
    const std::optional<PolicyItem>&had = before.in[t], &has = after.in[t];
    if (!had.has_value() && !has.has_value()) continue;
    if (order.policies[t] == nullptr) {
      order.capacity[t] = tenants_.CapacityOf(tenant, static_cast<TierId>(t));
      order.policies[t] = policy_.make(order.capacity[t]);
      order.hot[t] = lru_.make(order.capacity[t]);
    }
    EvictionPolicy &policy = *order.policies[t], &hot = *order.hot[t];
    if (!had.has_value()) {
      policy.Insert(page.item, *has);
      ++order.items[t];
    } else if (!has.has_value()) {
      policy.Remove(page.item, by == static_cast<TierId>(t));
      --order.items[t];
    } else if (had->bytes != has->bytes || had->worth != has->worth) {
      policy.Resize(page.item, has->bytes, has->worth);
    }
    const bool was_hot = before.hot && had.has_value(), is_hot = after.hot && has.has_value();
    if (is_hot && !was_hot) hot.Insert(page.item, *has);
    if (was_hot && !is_hot) hot.Remove(page.item, false);
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
  const StoreUsage of_page = UsageOf(page);
  usage_.Add(of_page, sign);
  StoreUsage& space = by_space_[page.space];
  space.Add(of_page, sign);
  if (space.pages == 0) by_space_.erase(page.space);
  const TenantId tenant = TenantOf(page.space);
  tenants_.Count(tenant, of_page, sign);
  if (in) tenants_.Settle(tenant);
}

absl::Status PageIndex::CheckTenants() const {
  std::vector<StoreUsage> counted(tenants_.size());
  std::vector<std::array<size_t, kTiers>> items(orders_.size());
  for (const PageEntry* const page : pages_) {
    const TenantId tenant = TenantOf(page->space);
    if (tenant >= counted.size() || tenant >= items.size()) {
      return Wrong(*page, "belongs to a tenant that has no row");
    }
    counted[tenant].Add(UsageOf(*page), 1);
    const Items in = ItemsOf(*page);
    for (int t = 0; t < kTiers; ++t) items[tenant][t] += in.in[t].has_value() ? 1 : 0;
  }
  for (TenantId tenant = 0; tenant < counted.size(); ++tenant) {
    const absl::Status same =
        Compare(tenants_.usage(tenant), counted[tenant], absl::StrCat("tenant ", tenant));
    if (!same.ok()) return same;
  }
  for (TenantId tenant = 0; tenant < items.size(); ++tenant) {
    if (items[tenant] != orders_[tenant].items) {
      return absl::InternalError(absl::StrCat("a policy of tenant ", tenant, " lists lost pages"));
    }
  }
  return tenants_.CheckInvariants();
}

absl::Status PageIndex::CheckInvariants() const {
  StoreUsage all;
  absl::flat_hash_map<SpaceId, StoreUsage> spaces;
  absl::flat_hash_set<PageNumber> numbers;
  for (const PageEntry* const page : pages_) {
    if (absl::Status s = CheckPage(*page); !s.ok()) return s;
    all.Add(UsageOf(*page), 1);
    spaces[page->space].Add(UsageOf(*page), 1);
    if (FindById(IdFor(page->name())) != page) return Wrong(*page, "is under a wrong id");
    if (!numbers.insert(page->number).second) return Wrong(*page, "shares its number");
  }
  if (absl::Status s = CheckTenants(); !s.ok()) return s;
  if (spaces.size() != by_space_.size()) return absl::InternalError("a space without pages");
  for (const auto& [id, counted] : spaces) {
    if (absl::Status s = Compare(usage(id), counted, absl::StrCat("space ", id)); !s.ok()) return s;
  }
  return Compare(usage_, all, "the store");
}

}  // namespace kvstow
