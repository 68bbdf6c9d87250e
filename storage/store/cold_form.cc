// The other coding of a page: a hot page becomes its cold form, once.
#include <algorithm>
#include <memory>
#include <utility>

#include "base/log.h"
#include "storage/store/store_impl.h"

namespace kvstow {
namespace {

constexpr TierId kAllTiers[] = {TierId::kGpu, TierId::kHost, TierId::kDisk};

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

void TieredStore::Impl::SetMakeColdForm(MakeColdForm make_cold_form) {
  MutexLock lock(mu_);
  make_cold_form_ = std::make_shared<const MakeColdForm>(std::move(make_cold_form));
}

// The hot page that was used longest ago; a page whose form cannot change now is skipped.
std::optional<TieredStore::Impl::Claim> TieredStore::Impl::PickHot(
    TierId from, const absl::flat_hash_set<PageNumber>& skip) {
  if (make_cold_form_ == nullptr) return std::nullopt;
  PageEntry* const page = index_.HotVictim(from, [&](const PageEntry& p) {
    if (p.is_protected()) return PageIndex::Offer::kHeld;
    const bool now = !p.busy && !skip.contains(p.number) && TiersOfAll(p).Has(from);
    return now ? PageIndex::Offer::kTaken : PageIndex::Offer::kNotNow;
  });
  if (page == nullptr) return std::nullopt;
  return Begin(page);
}

// Replaces the claimed hot page by its cold form, in every tier that holds all of it. The new one
// is another page with a number of its own: written first, published in the place of the old one in
// one step, and only then is the old one erased. A crash in between leaves two pages of one name on
// disk, of which recovery takes the later. False when the page stays as it is.
bool TieredStore::Impl::Cool(Claim& claim) {
  std::vector<uint16_t> all(claim->segment_count);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<SharedBytes> bodies;
  for (absl::StatusOr<SharedBytes>& body : ReadClaimed(claim, all)) {
    if (body.ok()) bodies.push_back(*std::move(body));
  }
  if (bodies.size() < all.size()) return claim.page() == nullptr;  // cut where it was damaged

  std::shared_ptr<const MakeColdForm> make_cold;
  PageNumber number = 0;
  {
    MutexLock lock(mu_);
    make_cold = make_cold_form_;
    number = next_number_++;
  }
  const std::optional<ColdForm> cold =
      (*make_cold)(claim->name(), SharedBytes::CopyOf(claim->header()), bodies);
  std::unique_ptr<PageEntry> entry;
  if (cold.has_value()) entry = ColdEntry(*claim.page(), *cold, TiersOfAll(*claim.page()), number);
  const bool smaller = entry != nullptr && entry->BytesOf(0, entry->segment_count) <=
                                               claim->BytesOf(0, claim->segment_count);
  if (!smaller) {
    // It cools as it is.
    MutexLock lock(mu_);
    index_.Change(claim.page(), [](PageEntry& page) { page.hot = false; });
    return false;
  }
  if (!WriteCold(*entry, cold->bodies)) return false;
  return Swap(claim, std::move(entry));
}

// All of a page that is not in the index yet, into the tiers that its segments name. It is smaller
// than the page whose place it takes, so no room is reserved for it.
bool TieredStore::Impl::WriteCold(const PageEntry& page, std::span<const SharedBytes> bodies) {
  std::vector<SegmentBody> list;
  for (size_t i = 0; i < bodies.size(); ++i) list.push_back({page.id(i), bodies[i]});
  absl::Status written;
  bool on_disk = false;
  const TierSet tiers = page.segments()[0].tiers;
  for (const TierId t : {TierId::kDisk, TierId::kHost, TierId::kGpu}) {
    if (!tiers.Has(t)) continue;
    written = t != TierId::kDisk
                  ? tier(t).Write(list)
                  : parts_.catalog->PutPage(page.Record(list.size()), list, page.disk_ack);
    if (!written.ok()) break;
    on_disk |= t == TierId::kDisk;
  }
  if (written.ok()) return true;
  EraseInMemory(page);
  {
    MutexLock lock(mu_);
    counters_.disk_errors += tiers.Has(TierId::kDisk) ? 1 : 0;
    if (on_disk) EraseLater(page, page.on_disk(), 0);
  }
  EraseNow().IgnoreError();  // it is tried again
  return false;
}

// Publishes `cold` in the place of the claimed page, unless that was leased or pinned meanwhile.
bool TieredStore::Impl::Swap(Claim& claim, std::unique_ptr<PageEntry> cold) {
  std::unique_ptr<PageEntry> gone;
  std::array<uint64_t, kTiers> leaving{};
  constexpr auto kDisk = static_cast<size_t>(TierId::kDisk);
  {
    MutexLock lock(mu_);
    const bool stays = claim->is_protected();
    if (stays) {
      gone = std::move(cold);
    } else {
      const uint64_t had = claim->BytesOf(0, claim->segment_count);
      counters_.cooled_pages += 1;
      counters_.cooled_bytes += had - cold->BytesOf(0, cold->segment_count);
      const std::array<uint64_t, kTiers> before = BytesByTier();
      gone = index_.Replace(claim.page(), std::move(cold));
      --claims_;
      claim.PageWasRemoved();
      const std::array<uint64_t, kTiers> after = BytesByTier();
      // Until the hot form has really gone.
      for (int t = 0; t < kTiers; ++t) leaving[t] = before[t] - after[t];
    }
    // Before the hot form goes, the cold one survives what the hot one did: power loss too.
    EraseLater(*gone, gone->on_disk(), std::exchange(leaving[kDisk], 0), /*sync_first=*/!stays);
    for (int t = 0; t < kTiers; ++t) reserved_[t] += leaving[t];
  }
  EraseInMemory(*gone);
  const absl::Status erased = EraseNow();
  if (!erased.ok())
    Log().warn("page {} stays on disk for now: {}", gone->number, erased.ToString());
  MutexLock lock(mu_);
  for (int t = 0; t < kTiers; ++t) reserved_[t] -= leaving[t];
  changed_.NotifyAll();
  return claim.page() == nullptr;
}

std::array<uint64_t, kTiers> TieredStore::Impl::BytesByTier() const {
  return {index_.bytes(TierId::kGpu), index_.bytes(TierId::kHost), index_.bytes(TierId::kDisk)};
}

// A page that is not in the index.
void TieredStore::Impl::EraseInMemory(const PageEntry& page) {
  for (const TierId t : {TierId::kGpu, TierId::kHost}) {
    std::vector<SegmentId> ids;
    for (const uint16_t i : page.SegmentsIn(t, 0)) ids.push_back(page.id(i));
    const absl::Status erased = ids.empty() ? absl::OkStatus() : tier(t).Erase(ids);
    if (!erased.ok()) Log().warn("page {}: {}", page.number, erased.ToString());
  }
}

}  // namespace kvstow
