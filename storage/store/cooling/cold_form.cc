// The other coding of a page: a hot page becomes its cold form, once.
#include <memory>
#include <utility>
#include <vector>

#include "storage/store/cooling/cooling.h"

namespace kvstow {
namespace {

// The tiers that hold all of the page: those get the cold form. Of what is elsewhere in part,
// nothing is needed.
TierSet TiersOfAll(const PageEntry& page) {
  TierSet out = page.segments()[0].tiers;
  for (const PageEntry::Segment& segment : page.segments()) {
    for (const TierId t : kAllTiers) {
      if (!segment.tiers.Has(t)) out.Remove(t);
    }
  }
  return out;
}

std::unique_ptr<PageEntry> ColdEntry(const PageEntry& hot, const ColdForm& cold, TierSet tiers,
                                     PageNumber number) {
  PageRecord record = hot.Record(0);
  record.number = number;
  record.header = cold.header;
  record.whole = cold.whole;
  record.hot = false;
  record.facts = cold.facts;
  std::unique_ptr<PageEntry> page = PageEntry::Make(record, tiers);
  page->disk_ack = hot.disk_ack;
  return page;
}

// A choice of many pages passes over so many others at most, for it is made under the lock.
constexpr size_t kMostPassedOver = 256;

}  // namespace

void Cooling::SetMakeColdForm(MakeColdForm make_cold_form) {
  const auto one_by_one = [make = std::move(make_cold_form)](std::span<const HotForm> pages) {
    std::vector<std::optional<ColdForm>> out;
    for (const HotForm& page : pages) out.push_back(make(page.name, page.header, page.bodies));
    return out;
  };
  SetColdForms({.make = one_by_one, .together = nullptr});
}

void Cooling::SetColdForms(ColdForms cold_forms) {
  auto made = std::make_shared<const ColdForms>(std::move(cold_forms));
  MutexLock lock(mu_);
  cold_forms_ = std::move(made);
}

// The hot page that was used longest ago; a page whose form cannot change now is skipped.
PageEntry* Cooling::PickHot(PageIndex& index, TenantId tenant, TierId from, const Numbers& skip) {
  if (cold_forms() == nullptr) return nullptr;
  const auto consider = [&](const PageEntry& page) {
    if (page.is_protected()) return PageIndex::Offer::kHeld;
    const bool now = !page.busy && !skip.contains(page.number) && TiersOfAll(page).Has(from);
    return now ? PageIndex::Offer::kTaken : PageIndex::Offer::kNotNow;
  };
  return index.HotVictim(from, consider, tenant);
}

std::vector<Claim> Cooling::ClaimMoreHot(const Rooms::Wanted& wanted, const Numbers& skip,
                                         Claim first) {
  const std::shared_ptr<const ColdForms> forms = cold_forms();
  std::vector<SpaceId> together;
  if (forms->most_pages > 1 && forms->together != nullptr) together = forms->together(first->space);
  const absl::flat_hash_set<SpaceId> spaces(together.begin(), together.end());
  uint64_t bytes = first->BytesOf(0, first->segment_count);
  // As PickHot does, in one go.
  const auto choose = [&](PageIndex& index, TenantId tenant) {
    std::vector<PageRef> refs;
    size_t passed_over = 0;
    const auto consider = [&](const PageEntry& page) {
      if (page.is_protected()) return PageIndex::Offer::kHeld;
      const bool now = !page.busy && spaces.contains(page.space) && !skip.contains(page.number) &&
                       TiersOfAll(page).Has(wanted.tier);
      const uint64_t more = now ? page.BytesOf(0, page.segment_count) : 0;
      const bool last =
          now ? refs.size() + 2 > forms->most_pages || bytes + more > forms->most_bytes
              : ++passed_over > kMostPassedOver;
      if (last) return PageIndex::Offer::kTaken;
      if (now) refs.push_back(page.ref());
      bytes += more;
      return PageIndex::Offer::kNotNow;
    };
    index.HotVictim(wanted.tier, consider, tenant);
    std::vector<PageEntry*> out;
    for (const PageRef& ref : refs) out.push_back(index.Find(ref));
    return out;
  };
  std::vector<Claim> out;
  if (!spaces.empty()) out = rooms_.FindMore(wanted, first, choose);
  out.insert(out.begin(), std::move(first));
  return out;
}

// Nothing when the page proved damaged, and was cut or is gone.
std::optional<HotForm> Cooling::ReadHot(Claim& claim) {
  std::vector<uint16_t> all(claim->segment_count);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  HotForm hot{.name = claim->name(), .header = SharedBytes::CopyOf(claim->header()), .bodies = {}};
  for (absl::StatusOr<SharedBytes>& body : movement_.Read(claim, all)) {
    if (body.ok()) hot.bodies.push_back(*std::move(body));
  }
  if (hot.bodies.size() < all.size()) return std::nullopt;
  return hot;
}

bool Cooling::TakeColdForms(std::span<Claim> claims, Numbers& skip) {
  const std::shared_ptr<const ColdForms> forms = cold_forms();
  bool any = false;
  std::vector<HotForm> pages;
  std::vector<std::pair<Claim*, PageNumber>> whole;  // their claims, and numbers for cold forms
  for (Claim& claim : claims) {
    const PageNumber number = claim->number;
    if (std::optional<HotForm> hot = ReadHot(claim); hot.has_value()) {
      pages.push_back(*std::move(hot));
      whole.emplace_back(&claim, claim.NewNumber());
    } else if (claim.gone()) {
      any = true;
    } else {
      skip.insert(number);
    }
  }
  if (pages.empty()) return any;
  const std::vector<std::optional<ColdForm>> cold = forms->make(pages);
  for (size_t i = 0; i < whole.size(); ++i) {
    Claim& claim = *whole[i].first;
    const PageNumber number = claim->number;
    if (TakeColdForm(claim, whole[i].second, cold[i])) {
      any = true;
    } else {
      skip.insert(number);
    }
  }
  return any;
}

// Replaces the claimed hot page by its cold form, in every tier that holds all of it. Returns false
// when the page stays as it is.
bool Cooling::TakeColdForm(Claim& claim, PageNumber number, const std::optional<ColdForm>& cold) {
  std::unique_ptr<PageEntry> entry;
  if (cold.has_value()) entry = ColdEntry(*claim, *cold, TiersOfAll(*claim), number);
  const bool smaller = entry != nullptr && entry->BytesOf(0, entry->segment_count) <=
                                               claim->BytesOf(0, claim->segment_count);
  if (!smaller) {
    // It cools as it is.
    claim.Change([](PageEntry& page) { page.hot = false; });
    return false;
  }
  return movement_.Replace(claim, std::move(entry), cold->bodies);
}

}  // namespace kvstow
