#include "storage/page_index.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace kvstow {
namespace {

void AddTo(StoreUsage& usage, const PageEntry& page, uint64_t sign) {
  usage.pages += sign;
  usage.raw_bytes += sign * page.raw_bytes;
  usage.pinned_pages += page.pinned ? sign : 0;
  for (size_t i = 0; i < page.segments.size(); ++i) {
    usage.encoded_bytes += sign * page.BytesOf(i);
    for (int t = 0; t < kTiers; ++t) {
      if (!page.segments[i].tiers.Has(static_cast<TierId>(t))) continue;
      usage.tiers[t].segments += sign;
      usage.tiers[t].encoded_bytes += sign * page.BytesOf(i);
    }
  }
  TierUsage& home = usage.tiers[static_cast<size_t>(page.segments[0].tiers.Hottest())];
  home.pages += sign;
  home.raw_bytes += sign * page.raw_bytes;
}

TierSet TiersOf(const PageEntry& page) {
  TierSet out;
  for (const PageEntry::Segment& segment : page.segments) {
    for (int t = 0; t < kTiers; ++t) {
      if (segment.tiers.Has(static_cast<TierId>(t))) out.Add(static_cast<TierId>(t));
    }
  }
  return out;
}

absl::Status Wrong(const PageEntry& page, absl::string_view what) {
  return absl::InternalError(absl::StrCat("page ", page.number, ": ", what));
}

absl::Status CheckPage(const PageEntry& page) {
  if (page.segments.empty()) return Wrong(page, "has no segments");
  for (const PageEntry::Segment& segment : page.segments) {
    if (segment.tiers.empty()) return Wrong(page, "a segment is in no tier");
  }
  for (size_t i = page.on_disk(); i < page.segments.size(); ++i) {
    if (page.segments[i].tiers.Has(TierId::kDisk)) {
      return Wrong(page, "what is on disk is no leading part");
    }
  }
  return absl::OkStatus();
}

absl::Status Compare(const StoreUsage& kept, const StoreUsage& counted, absl::string_view where) {
  if (kept == counted) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("usage of ", where, ": kept ", kept.encoded_bytes,
                                          " bytes in ", kept.pages, " pages, counted ",
                                          counted.encoded_bytes, " in ", counted.pages,
                                          " (or a tier's share differs)"));
}

}  // namespace

uint64_t PageEntry::BytesOf(size_t first, size_t end) const {
  uint64_t bytes = 0;
  for (size_t i = first; i < end; ++i) bytes += BytesOf(i);
  return bytes;
}

std::vector<uint16_t> PageEntry::SegmentsIn(TierId tier, size_t first) const {
  std::vector<uint16_t> out;
  for (size_t i = first; i < segments.size(); ++i) {
    if (segments[i].tiers.Has(tier)) out.push_back(static_cast<uint16_t>(i));
  }
  return out;
}

PageRecord PageEntry::Record(size_t segments_on_disk) const {
  PageRecord record{.number = number,
                    .name = name,
                    .header = header,
                    .raw_digest = raw_digest,
                    .raw_bytes = raw_bytes,
                    .first_position = first_position,
                    .tokens = tokens,
                    .whole = whole,
                    .hot = hot};
  for (size_t i = 0; i < segments_on_disk; ++i) record.facts.push_back(segments[i].facts);
  return record;
}

size_t PageEntry::on_disk() const {
  size_t n = 0;
  while (n < segments.size() && segments[n].tiers.Has(TierId::kDisk)) ++n;
  return n;
}

PageEntry* PageIndex::Find(const PageName& name) {
  const auto it = pages_.find(name);
  return it == pages_.end() ? nullptr : it->second.get();
}

PageEntry* PageIndex::Find(PageNumber number) {
  const auto it = by_number_.find(number);
  return it == by_number_.end() ? nullptr : it->second;
}

PageEntry* PageIndex::Insert(std::unique_ptr<PageEntry> page) {
  PageEntry* const entry = page.get();
  by_number_[entry->number] = entry;
  pages_[entry->name] = std::move(page);
  Count(*entry, true);
  return entry;
}

std::unique_ptr<PageEntry> PageIndex::Remove(PageEntry* page) {
  Count(*page, false);
  by_number_.erase(page->number);
  const auto it = pages_.find(page->name);
  std::unique_ptr<PageEntry> out = std::move(it->second);
  pages_.erase(it);
  return out;
}

void PageIndex::Change(PageEntry* page, absl::FunctionRef<void(PageEntry&)> edit) {
  Count(*page, false);
  edit(*page);
  Count(*page, true);
}

void PageIndex::Touch(PageEntry* page, int64_t age) {
  if (page->age == age) return;
  const TierSet tiers = TiersOf(*page);
  const EvictionRank old = page->rank();
  page->age = age;
  for (int t = 0; t < kTiers; ++t) {
    if (!tiers.Has(static_cast<TierId>(t))) continue;
    for (Order* order : OrdersOf(*page, t)) {
      order->erase(old);
      order->emplace(page->rank(), page);
    }
  }
}

StoreUsage PageIndex::usage(SpaceId space) const {
  const auto it = by_space_.find(space);
  return it == by_space_.end() ? StoreUsage{} : it->second;
}

void PageIndex::ForEach(absl::FunctionRef<void(const PageEntry&)> visit) const {
  for (const auto& [name, page] : pages_) visit(*page);
}

std::vector<PageIndex::Order*> PageIndex::OrdersOf(const PageEntry& page, int tier) {
  if (page.hot) return {&order_[tier], &hot_order_[tier]};
  return {&order_[tier]};
}

void PageIndex::Count(const PageEntry& page, bool in) {
  const uint64_t sign = in ? 1 : ~uint64_t{0};  // unsigned sums wrap: adding -1 takes one away
  AddTo(usage_, page, sign);
  StoreUsage& space = by_space_[page.name.space];
  AddTo(space, page, sign);
  if (space.pages == 0) by_space_.erase(page.name.space);
  const TierSet tiers = TiersOf(page);
  for (int t = 0; t < kTiers; ++t) {
    if (!tiers.Has(static_cast<TierId>(t))) continue;
    for (Order* order : OrdersOf(page, t)) {
      if (in) {
        order->emplace(page.rank(), by_number_[page.number]);
      } else {
        order->erase(page.rank());
      }
    }
  }
}

absl::Status PageIndex::CheckInvariants() const {
  StoreUsage all;
  absl::flat_hash_map<SpaceId, StoreUsage> spaces;
  std::array<size_t, kTiers> in_order{}, hot_in_order{};
  for (const auto& [name, page] : pages_) {
    if (absl::Status s = CheckPage(*page); !s.ok()) return s;
    AddTo(all, *page, 1);
    AddTo(spaces[name.space], *page, 1);
    const TierSet tiers = TiersOf(*page);
    for (int t = 0; t < kTiers; ++t) {
      const auto it = order_[t].find(page->rank());
      const bool listed = it != order_[t].end() && it->second == page.get();
      if (listed != tiers.Has(static_cast<TierId>(t))) {
        return Wrong(*page, "is in the wrong orders of cooling");
      }
      in_order[t] += listed ? 1 : 0;
      const bool hot = hot_order_[t].contains(page->rank());
      if (hot != (listed && page->hot)) return Wrong(*page, "is in the wrong orders of hot pages");
      hot_in_order[t] += hot ? 1 : 0;
    }
    const auto it = by_number_.find(page->number);
    if (it == by_number_.end() || it->second != page.get()) return Wrong(*page, "lost its number");
  }
  for (int t = 0; t < kTiers; ++t) {
    if (in_order[t] != order_[t].size() || hot_in_order[t] != hot_order_[t].size()) {
      return absl::InternalError("an order lists lost pages");
    }
  }
  if (by_number_.size() != pages_.size()) return absl::InternalError("a number has no page");
  if (spaces.size() != by_space_.size()) return absl::InternalError("a space without pages");
  for (const auto& [id, counted] : spaces) {
    if (absl::Status s = Compare(usage(id), counted, absl::StrCat("space ", id)); !s.ok()) return s;
  }
  return Compare(usage_, all, "the store");
}

}  // namespace kvstow
