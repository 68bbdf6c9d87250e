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

}  // namespace

void Cooling::SetMakeColdForm(MakeColdForm make_cold_form) {
  auto made = std::make_shared<const MakeColdForm>(std::move(make_cold_form));
  MutexLock lock(mu_);
  make_cold_form_ = std::move(made);
}

// The hot page that was used longest ago; a page whose form cannot change now is skipped.
PageEntry* Cooling::PickHot(PageIndex& index, TenantId tenant, TierId from, const Numbers& skip) {
  {
    MutexLock lock(mu_);
    if (make_cold_form_ == nullptr) return nullptr;
  }
  const auto consider = [&](const PageEntry& page) {
    if (page.is_protected()) return PageIndex::Offer::kHeld;
    const bool now = !page.busy && !skip.contains(page.number) && TiersOfAll(page).Has(from);
    return now ? PageIndex::Offer::kTaken : PageIndex::Offer::kNotNow;
  };
  return index.HotVictim(from, consider, tenant);
}

// Replaces the claimed hot page by its cold form, in every tier that holds all of it. Returns false
// when the page stays as it is.
bool Cooling::TakeColdForm(Claim& claim) {
  std::vector<uint16_t> all(claim->segment_count);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<SharedBytes> bodies;
  for (absl::StatusOr<SharedBytes>& body : movement_.Read(claim, all)) {
    if (body.ok()) bodies.push_back(*std::move(body));
  }
  if (bodies.size() < all.size()) return claim.gone();  // cut where it was damaged

  std::shared_ptr<const MakeColdForm> make_cold;
  {
    MutexLock lock(mu_);
    make_cold = make_cold_form_;
  }
  const PageNumber number = claim.NewNumber();
  const std::optional<ColdForm> cold =
      (*make_cold)(claim->name(), SharedBytes::CopyOf(claim->header()), bodies);
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
