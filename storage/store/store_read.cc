// The readers' side of the store: Lookup, Find, Read, and the numbers.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/store/store_impl.h"

namespace kvstow {
namespace {

constexpr TierId kTierOrder[] = {TierId::kGpu, TierId::kHost, TierId::kDisk};

constexpr size_t kMaxWalk = 65536;  // pages that are looked at for a sample, at 0.1 us each
constexpr size_t kAtOnce = 64;      // pages of a sample under one lock

absl::Status Missing() { return absl::NotFoundError("the segment is not stored (any longer)"); }

FoundPage WhatIsThere(PageEntry& page, CountLevels count_levels) {
  PageEntry::Segment& last = page.segments().back();
  if (last.levels == PageEntry::Segment::kNotCounted) {
    last.levels = count_levels(page.header(), page.segment_count);
  }
  return {.number = page.number,
          .stored_bytes = page.BytesOf(0, page.segment_count),
          .tokens = page.tokens,
          .segments = page.segment_count,
          .levels = last.levels,
          .tier = page.segments()[0].tiers.Hottest()};
}

}  // namespace

PrefixMatch TieredStore::Impl::Lookup(SpaceId space, std::span<const absl::string_view> keys,
                                      bool take_lease) {
  PrefixMatch match;
  match.pages.reserve(keys.size());
  std::vector<PageEntry*> found;
  found.reserve(keys.size());
  PageName name{.space = space};
  const Time now = options_.clock->Now();
  MutexLock lock(mu_);
  ReapLeases();
  for (const absl::string_view key : keys) {
    name.key.assign(key.data(), key.size());
    PageEntry* const page = index_.Find(name);
    if (page == nullptr) {
      if (!found.empty()) index_.Expect(name, *found.back());
      break;
    }
    if (!found.empty()) index_.SetParent(page, *found.back());
    found.push_back(page);
    match.pages.push_back(WhatIsThere(*page, options_.count_levels));
  }
  if (!take_lease || found.empty()) return match;
  // A key may have been asked for more than once.
  std::erase_if(found, [](PageEntry* page) {
    const bool again = page->listed;
    page->listed = true;
    return again;
  });
  for (PageEntry* const page : found) page->listed = false;
  match.lease_refused = !leases_.HasRoomFor(found.size());
  if (match.lease_refused) return match;
  std::vector<PageRef> pages;
  pages.reserve(found.size());
  const uint32_t used_s = SecondsOpen();
  for (PageEntry* const page : found) {
    ++page->leases;
    index_.Touch(page, used_s);
    pages.push_back(page->ref());
  }
  match.lease = leases_.Grant(std::move(pages), now);
  match.ttl = leases_.ttl();
  return match;
}

void TieredStore::Impl::CatchUp() {
  MutexLock lock(mu_);
  index_.TellUses();
}

bool TieredStore::Impl::Renew(LeaseId lease) {
  const Time now = options_.clock->Now();
  MutexLock lock(mu_);
  return leases_.Renew(lease, now);
}

bool TieredStore::Impl::Release(LeaseId lease) {
  const Time now = options_.clock->Now();
  MutexLock lock(mu_);
  const auto pages = leases_.Release(lease, now);
  if (!pages.has_value()) return false;
  for (const PageRef& page : *pages) index_.EndLease(page);
  changed_.NotifyAll();
  return true;
}

void TieredStore::Impl::ReapLeases() {
  const LeaseTable::Expired expired = leases_.Expire(options_.clock->Now());
  counters_.expired_leases += expired.leases;
  for (const PageRef& page : expired.pages) index_.EndLease(page);
}

absl::StatusOr<PageFacts> TieredStore::Impl::Find(const PageName& name) {
  MutexLock lock(mu_);
  const PageEntry* const page = index_.Find(name);
  if (page == nullptr) return absl::NotFoundError("no such page");
  return FactsOf(*page);
}

void TieredStore::Impl::Use(const PageName& name) {
  MutexLock lock(mu_);
  PageEntry* const page = index_.Find(name);
  if (page != nullptr && page->leases == 0) index_.Touch(page, SecondsOpen());
}

PageFacts TieredStore::Impl::FactsOf(const PageEntry& page) const {
  PageFacts facts{.number = page.number,
                  .header = SharedBytes::CopyOf(page.header()),
                  .raw_digest = page.raw_digest,
                  .tokens = page.tokens,
                  .first_position = page.first_position};
  for (const PageEntry::Segment& segment : page.segments()) {
    facts.segments.push_back(segment.facts);
    facts.tiers.push_back(segment.tiers.Hottest());
  }
  if (page.on_disk() == page.segment_count) facts.ack = page.disk_ack;
  return facts;
}

std::vector<absl::StatusOr<SharedBytes>> TieredStore::Impl::Read(const PageName& name,
                                                                 PageNumber number,
                                                                 std::span<const uint16_t> indices,
                                                                 Checks checks) {
  std::vector<absl::StatusOr<SharedBytes>> out(indices.size(), Missing());
  std::vector<std::optional<PageEntry::Segment>> segments(indices.size());
  PageRef ref;
  {
    MutexLock lock(mu_);
    const PageEntry* const page = index_.Find(name);
    if (page == nullptr || page->number != number) return out;
    ref = page->ref();
    for (size_t k = 0; k < indices.size(); ++k) {
      if (indices[k] < page->segment_count) segments[k] = page->segments()[indices[k]];
    }
  }
  std::vector<uint16_t> doubtful, from_disk;
  std::vector<size_t> doubtful_at;
  std::vector<absl::StatusOr<SharedBytes>> disk_bodies;
  for (const TierId t : kTierOrder) {
    std::vector<SegmentId> ids;
    std::vector<size_t> at;
    for (size_t k = 0; k < indices.size(); ++k) {
      if (!segments[k].has_value() || segments[k]->tiers.Hottest() != t) continue;
      ids.push_back({number, indices[k]});
      at.push_back(k);
    }
    if (ids.empty()) continue;
    std::vector<absl::StatusOr<SharedBytes>> bodies = tier(t).Read(ids);
    const bool as_is = t == TierId::kHost && checks == Checks::kReader;
    for (size_t j = 0; j < at.size(); ++j) {
      out[at[j]] =
          as_is ? std::move(bodies[j]) : Verified(std::move(bodies[j]), segments[at[j]]->facts);
      if (!out[at[j]].ok()) {
        doubtful.push_back(ids[j].index);
        doubtful_at.push_back(at[j]);
      } else if (t == TierId::kDisk) {
        from_disk.push_back(ids[j].index);
        disk_bodies.push_back(out[at[j]]);
      }
    }
  }
  if (!from_disk.empty()) Promote(ref, from_disk, disk_bodies);
  if (doubtful.empty()) return out;

  // It may have moved while it was read, or its bytes are bad: look again with nobody moving it.
  std::optional<Claim> claim = ClaimPage(ref, Wait::kYes);
  if (!claim.has_value()) {
    for (const size_t k : doubtful_at) out[k] = Missing();
    return out;
  }
  std::vector<absl::StatusOr<SharedBytes>> again = ReadClaimed(*claim, doubtful);
  for (size_t j = 0; j < doubtful.size(); ++j) out[doubtful_at[j]] = std::move(again[j]);
  return out;
}

// Bodies from the hottest good copy. Copies that prove bad are dropped, and with the last copy of a
// segment the page's tail.
std::vector<absl::StatusOr<SharedBytes>> TieredStore::Impl::ReadClaimed(
    Claim& claim, std::span<const uint16_t> indices) {
  std::vector<absl::StatusOr<SharedBytes>> out(indices.size(), Missing());
  std::vector<BadCopy> bad;
  size_t keep = claim->segment_count;
  uint64_t corrupt = 0, lost = 0, disk_errors = 0;
  for (size_t k = 0; k < indices.size(); ++k) {
    const uint16_t i = indices[k];
    if (i >= claim->segment_count) continue;
    const PageEntry::Segment& segment = claim->segments()[i];
    TierSet left = segment.tiers, proven;
    while (!left.empty()) {
      const TierId t = left.Hottest();
      const SegmentId id = claim->id(i);
      out[k] = Verified(std::move(tier(t).Read({&id, 1})[0]), segment.facts);
      if (out[k].ok()) break;
      if (absl::IsNotFound(out[k].status()) || absl::IsDataLoss(out[k].status())) {
        ++(absl::IsNotFound(out[k].status()) ? lost : corrupt);
        bad.push_back({i, t});
        proven.Add(t);
      } else {
        disk_errors += t == TierId::kDisk ? 1 : 0;
      }
      left.Remove(t);
    }
    // Bad everywhere, and not just out of reach: this segment is gone.
    if (proven == segment.tiers) keep = std::min<size_t>(keep, i);
  }
  {
    MutexLock lock(mu_);
    counters_.corrupt_segments += corrupt;
    counters_.lost_segments += lost;
    counters_.disk_errors += disk_errors;
  }
  DropBad(claim, bad, keep);
  return out;
}

// Drops the page from segment `keep` on, and bad copies before it. A bad copy on disk stays: what
// is there must be a leading part; it is found again when it is the last copy.
void TieredStore::Impl::DropBad(Claim& claim, std::span<const BadCopy> bad, size_t keep) {
  if (keep < claim->segment_count) Truncate(claim, keep, Why::kDamage).IgnoreError();
  if (claim.page() == nullptr) return;
  for (const BadCopy& copy : bad) {
    if (copy.index >= claim->segment_count || copy.tier == TierId::kDisk) continue;
    DropCopies(claim, copy.tier, {&copy.index, 1});
  }
}

// Bytes read from disk go into memory too: while memory is below its low watermark, or, at the
// second use of the page since it left memory, below its high one. Nothing is evicted for them.
// They are written as they were read.
void TieredStore::Impl::Promote(const PageRef& page, std::span<const uint16_t> indices,
                                std::span<const absl::StatusOr<SharedBytes>> bodies) {
  constexpr TierId kTo = TierId::kHost;
  if (!usable(kTo)) return;
  std::optional<Claim> claim = ClaimPage(page, Wait::kNo);
  if (!claim.has_value()) return;
  const PageEntry& entry = *claim->page();
  std::vector<SegmentBody> list;
  uint64_t bytes = 0;
  for (size_t k = 0; k < indices.size(); ++k) {
    const uint16_t i = indices[k];
    if (i >= entry.segment_count || entry.segments()[i].tiers.Has(kTo)) continue;
    list.push_back({entry.id(i), *bodies[k]});
    bytes += entry.BytesOf(i);
  }
  {
    MutexLock lock(mu_);
    const double watermark = entry.disk_uses < 2 ? options_.low_watermark : options_.high_watermark;
    const auto room = static_cast<uint64_t>(watermark * static_cast<double>(budget(kTo)));
    if (list.empty() || index_.bytes(kTo) + reserved(kTo) + bytes > room) return;
    reserved(kTo) += bytes;
  }
  // Bodies from the disk lie in memory that is for bytes on their way (storage/disk/block_pool.h).
  for (SegmentBody& body : list) body.bytes = SharedBytes::CopyOf(body.bytes.span());
  const absl::Status written = tier(kTo).Write(list);
  MutexLock lock(mu_);
  reserved(kTo) -= bytes;
  if (!written.ok()) return;  // it stays where it is
  index_.Change(claim->page(), [&](PageEntry& page) {
    page.disk_uses = 0;
    for (const SegmentBody& body : list) page.segments()[body.id.index].tiers.Add(kTo);
  });
}

absl::Status TieredStore::Impl::Pin(const PageName& name, bool pinned) {
  MutexLock lock(mu_);
  PageEntry* const page = index_.Find(name);
  if (page == nullptr) return absl::NotFoundError("no such page");
  index_.Change(page, [&](PageEntry& p) { p.pinned = pinned; });
  return absl::OkStatus();
}

// By claim: whoever moves the page reads its gains without the lock.
absl::Status TieredStore::Impl::SetGains(const PageName& name, PageNumber number,
                                         std::span<const float> gains) {
  const std::optional<Claim> claim = ClaimNumber(name, number);
  if (!claim.has_value()) return absl::NotFoundError("no such page");
  if (gains.size() < (*claim)->segment_count) {
    return absl::InvalidArgumentError(
        absl::StrCat(gains.size(), " gains for a page of ", (*claim)->segment_count, " segments"));
  }
  MutexLock lock(mu_);
  index_.Change(claim->page(), [&](PageEntry& page) {
    for (size_t i = 0; i < page.segment_count; ++i) page.segments()[i].facts.gain = gains[i];
  });
  return absl::OkStatus();
}

StoreUsage TieredStore::Impl::Usage() {
  MutexLock lock(mu_);
  StoreUsage usage = index_.usage();
  for (int t = 0; t < kTiers; ++t) usage.tiers[t].budget_bytes = budgets_[t];
  usage.tiers[static_cast<size_t>(TierId::kDisk)].encoded_bytes += unerased_.bytes();
  usage.leases = leases_.size();
  usage.leased_pages = leases_.pages();
  return usage;
}

StoreUsage TieredStore::Impl::Usage(SpaceId space) {
  MutexLock lock(mu_);
  return index_.usage(space);
}

StoreCounters TieredStore::Impl::Counters() {
  MutexLock lock(mu_);
  return counters_;
}

std::vector<PageName> TieredStore::Impl::Pages(SpaceId space) {
  std::vector<PageName> names;
  MutexLock lock(mu_);
  index_.ForEach([&](const PageEntry& page) {
    if (space == 0 || page.space == space) names.push_back(page.name());
  });
  return names;
}

void TieredStore::Impl::TellPages(StoreObserver& observer) {
  MutexLock lock(mu_);
  observer.Restart(index_.size());
  index_.ForEach(
      [&](const PageEntry& page) { observer.PageCame(page.space, page.key(), page.tokens); });
}

// A clock that goes back counts as one that stands still.
uint32_t TieredStore::Impl::SecondsOpen() const {
  const auto open =
      std::chrono::duration_cast<std::chrono::seconds>(options_.clock->Now() - opened_);
  return static_cast<uint32_t>(
      std::clamp<int64_t>(open.count(), 0, std::numeric_limits<uint32_t>::max()));
}

std::vector<PageSample> TieredStore::Impl::Sample(SpaceId space, size_t max_pages) {
  std::vector<PageRef> refs;
  {
    MutexLock lock(mu_);
    index_.ForSome(kMaxWalk, [&](const PageEntry& page) {
      const bool wanted = space == 0 || page.space == space;
      if (wanted && refs.size() < max_pages) refs.push_back(page.ref());
    });
  }
  std::vector<PageSample> out;
  out.reserve(refs.size());
  const uint32_t now_s = SecondsOpen();
  for (size_t first = 0; first < refs.size(); first += kAtOnce) {
    MutexLock lock(mu_);
    for (size_t i = first; i < std::min(first + kAtOnce, refs.size()); ++i) {
      PageEntry* const page = index_.Find(refs[i]);
      if (page == nullptr) continue;  // it went meanwhile
      const uint32_t idle_s = now_s > page->used_s ? now_s - page->used_s : 0;
      out.push_back({.page = WhatIsThere(*page, options_.count_levels),
                     .space = page->space,
                     .raw_bytes = page->raw_bytes,
                     .idle = std::chrono::seconds(idle_s)});
    }
  }
  return out;
}

absl::Status TieredStore::Impl::CheckInvariants() {
  MutexLock lock(mu_);
  if (absl::Status s = index_.CheckInvariants(); !s.ok()) return s;
  const auto counts = leases_.CountPages();
  absl::Status wrong;
  index_.ForEach([&](const PageEntry& page) {
    const auto it = counts.find(page.number);
    const uint32_t count = it == counts.end() ? 0 : it->second;
    if (page.leases == count) return;
    wrong = absl::InternalError(
        absl::StrCat("page ", page.number, " counts ", page.leases, " leases, the table ", count));
  });
  for (int t = 0; t < kTiers; ++t) {
    const auto id = static_cast<TierId>(t);
    const uint64_t held = Held(id);
    if (held > std::max(budget(id), ceiling_[t])) {
      wrong = absl::InternalError(absl::StrCat(TierName(id), " is over its budget"));
    }
    ceiling_[t] = held;
  }
  return wrong;
}

}  // namespace kvstow
