// Making room: how segments of the pages that policies choose move or go.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "storage/store/store_impl.h"

namespace kvstow {
namespace {

constexpr Duration kBackgroundPeriod = std::chrono::milliseconds(500);
// Put waits for others' moves at most so often before it answers that there is no room.
constexpr int kMaxWaits = 256;
// After so many pages that could not be cooled, others will not be either, and each costs a look in
// every further decision.
constexpr size_t kMaxSkipped = 64;

// How many leading segments a tier of that target takes; see TieredStoreOptions::target_bits.
size_t SegmentsWithin(const PageEntry& page, double target_bits) {
  if (target_bits == 0) return page.segment_count;
  constexpr double kRawBits = 16;
  const double bytes = target_bits / kRawBits * static_cast<double>(page.raw_bytes);
  return page.SegmentsWithin(static_cast<uint64_t>(bytes));
}

}  // namespace

std::optional<TieredStore::Impl::Claim> TieredStore::Impl::ClaimPage(const PageRef& ref,
                                                                     Wait wait) {
  MutexLock lock(mu_);
  for (;;) {
    PageEntry* const page = index_.Find(ref);
    if (page == nullptr) return std::nullopt;
    if (!page->busy) return Begin(page);
    if (wait == Wait::kNo) return std::nullopt;
    changed_.Wait(mu_);
  }
}

TieredStore::Impl::Claim TieredStore::Impl::Begin(PageEntry* page) {
  page->busy = true;
  ++claims_;
  return Claim(this, page);
}

void TieredStore::Impl::EndClaim(PageEntry* page) {
  if (page == nullptr) return;
  MutexLock lock(mu_);
  page->busy = false;
  --claims_;
  changed_.NotifyAll();
}

bool TieredStore::Impl::Reserve(TierId t, uint64_t bytes, Wait wait) {
  return usable(t) && CoolUntil(t, budget(t), bytes, wait);
}

void TieredStore::Impl::Unreserve(TierId t, uint64_t bytes) {
  MutexLock lock(mu_);
  reserved(t) -= bytes;
  changed_.NotifyAll();
}

// Cools `t` until what it holds and `reserve` more are within `limit` and its budget; then reserves
// them.
bool TieredStore::Impl::CoolUntil(TierId t, uint64_t limit, uint64_t reserve, Wait wait) {
  absl::flat_hash_set<PageNumber> skip, skip_hot;  // pages that could not be cooled
  bool try_hot = true;
  for (int waits = 0;;) {
    std::optional<Claim> hot;
    std::optional<Step> step;
    bool erase = false;
    {
      MutexLock lock(mu_);
      ReapLeases();
      const uint64_t held = Held(t) + reserve;
      const uint64_t room = std::min(limit, budget(t));
      if (reserve > room) return false;  // not even alone
      if (held <= room) {
        reserved(t) += reserve;
        return true;
      }
      // While the disk refuses removals, those of more pages make no room.
      erase = t == TierId::kDisk && unerased_.bytes() > unerased_.busy_bytes();
      if (!erase && std::exchange(try_hot, true)) hot = PickHot(t, skip_hot);
      if (!erase && !hot.has_value() && skip.size() < kMaxSkipped) step = PickStep(t, skip);
      if (!erase && !hot.has_value() && !step.has_value()) {
        const bool under_way = claims_ > 0 || reserved(t) > 0 || unerased_.busy_bytes() > 0;
        if (wait == Wait::kNo || !under_way || ++waits > kMaxWaits) return false;
        changed_.Wait(mu_);
        continue;
      }
    }
    if (erase) {
      if (!EraseNow().ok()) return false;
      continue;
    }
    if (hot.has_value()) {
      const PageNumber number = (*hot)->number;
      // Where one does not get cold, something cools as it is, before another is tried.
      try_hot = Cool(*hot);
      if (!try_hot) skip_hot.insert(number);
      continue;
    }
    const PageNumber number = step->claim->number;
    const bool cooled = t == TierId::kDisk ? CoolDisk(*step) : CoolMemory(t, *step);
    if (!cooled) skip.insert(number);
  }
}

std::optional<TieredStore::Impl::Step> TieredStore::Impl::PickStep(
    TierId from, const absl::flat_hash_set<PageNumber>& skip) {
  PageEntry* const page = index_.Victim(from, [&](const PageEntry& p) {
    if (p.busy || skip.contains(p.number)) return PageIndex::Offer::kNotNow;
    return MayLeave(p, from, p.KeepIn(from)) ? PageIndex::Offer::kTaken : PageIndex::Offer::kHeld;
  });
  if (page == nullptr) return std::nullopt;
  return Step{Begin(page), page->KeepIn(from)};
}

// Returns whether segments [keep, end) may leave `from`. Those of a protected page may only if a
// colder tier takes them.
bool TieredStore::Impl::MayLeave(const PageEntry& page, TierId from, size_t keep) const {
  if (!page.is_protected()) return true;
  if (from == TierId::kDisk) return false;
  if (usable(TierId::kDisk) || (from == TierId::kGpu && usable(TierId::kHost))) return true;
  return std::all_of(page.segments().begin() + keep, page.segments().end(),
                     [&](const PageEntry::Segment& segment) {
                       return !segment.tiers.Has(from) || segment.tiers.HasColderThan(from);
                     });
}

bool TieredStore::Impl::CoolMemory(TierId from, Step& step) {
  const TierId to = from == TierId::kGpu && usable(TierId::kHost) ? TierId::kHost : TierId::kDisk;
  const double bits = options_.target_bits[static_cast<size_t>(to)];
  // Leased and pinned pages move as they are: of those nothing is truncated.
  if (step.keep >= SegmentsWithin(*step.claim.page(), bits) &&
      Truncate(step.claim, step.keep, Why::kPolicy, from).ok()) {
    return true;
  }
  const size_t had = step.claim->segment_count;
  const absl::Status moved = CopyColder(step.claim, from, step.keep);
  // Where it proved damaged it was cut, which made room too: what is left gets its own step.
  if (step.claim.page() == nullptr || step.claim->segment_count < had) return true;
  if (moved.ok()) {
    const std::vector<uint16_t> leaving = step.claim->SegmentsIn(from, step.keep);
    uint64_t bytes = 0;
    for (const uint16_t i : leaving) bytes += step.claim->BytesOf(i);
    DropCopies(step.claim, from, leaving, from);
    MutexLock lock(mu_);
    counters_.demoted_bytes += bytes;
    return true;
  }
  // No room below: what is worth least is forgotten.
  return Truncate(step.claim, step.keep, Why::kPolicy, from).ok();
}

bool TieredStore::Impl::CoolDisk(Step& step) {
  const std::span<const PageEntry::Segment> segments = step.claim->segments();
  size_t keep = step.keep;  // of the page: everything up to the first that is on disk only
  const size_t on_disk = step.claim->on_disk();
  while (keep < on_disk && segments[keep].tiers.Hottest() != TierId::kDisk) ++keep;
  constexpr TierId kFrom = TierId::kDisk;
  if (keep < on_disk && !Truncate(step.claim, keep, Why::kPolicy, kFrom).ok()) return false;
  if (step.claim.page() == nullptr) return true;
  DropCopies(step.claim, kFrom, step.claim->SegmentsIn(kFrom, step.keep), kFrom);
  return true;
}

// Gives those of the segments [keep, end) that are in `from` and nowhere colder a colder copy.
absl::Status TieredStore::Impl::CopyColder(Claim& claim, TierId from, size_t keep) {
  std::vector<uint16_t> missing = claim->SegmentsIn(from, keep);
  std::erase_if(missing,
                [&](uint16_t i) { return claim->segments()[i].tiers.HasColderThan(from); });
  if (missing.empty()) return absl::OkStatus();
  if (from == TierId::kGpu) {
    const absl::Status copied = CopyToHost(claim, missing);
    if (copied.ok() || claim.page() == nullptr) return copied;
    if (missing.back() >= claim->segment_count) return copied;  // its tail proved damaged
  }
  // What is on disk is a leading part: everything up to the last one goes with it.
  return WriteThrough(claim, missing.back() + size_t{1}, Ack::kMemory);
}

absl::Status TieredStore::Impl::CopyToHost(Claim& claim, std::span<const uint16_t> indices) {
  constexpr TierId kTo = TierId::kHost;
  const PageNumber number = claim->number;  // the page may go while it is read
  uint64_t bytes = 0;
  for (const uint16_t i : indices) bytes += claim->BytesOf(i);
  if (bytes > budget(kTo) || !Reserve(kTo, bytes, Wait::kNo)) {
    return absl::ResourceExhaustedError("host has no room");
  }
  absl::Status written;
  std::vector<SegmentBody> list;
  for (absl::StatusOr<SharedBytes>& body : ReadClaimed(claim, indices)) {
    written.Update(body.status());
    if (written.ok()) list.push_back({{number, indices[list.size()]}, *std::move(body)});
  }
  if (written.ok()) written = tier(kTo).Write(list);
  MutexLock lock(mu_);
  reserved(kTo) -= bytes;
  changed_.NotifyAll();
  if (!written.ok()) return written;
  index_.Change(claim.page(), [&](PageEntry& page) {
    for (const SegmentBody& body : list) page.segments()[body.id.index].tiers.Add(kTo);
  });
  return absl::OkStatus();
}

// Sees to it that the leading `end` segments are on disk, and survive what `ack` says.
absl::Status TieredStore::Impl::WriteThrough(Claim& claim, size_t end, Ack ack) {
  const PageNumber number = claim->number;  // the page may go while it is read
  const size_t on_disk = claim->on_disk();
  if (on_disk >= end) {
    if (claim->disk_ack >= ack) return absl::OkStatus();
    KVSTOW_RETURN_IF_ERROR(parts_.catalog->Sync());
    MutexLock lock(mu_);
    claim.page()->disk_ack = Ack::kDurable;
    return absl::OkStatus();
  }
  // A copy of it that is still to be erased goes first: it has the same number.
  KVSTOW_RETURN_IF_ERROR(EraseNow(claim->name()));
  const uint64_t bytes = claim->BytesOf(on_disk, end);
  if (bytes > budget(TierId::kDisk) || !Reserve(TierId::kDisk, bytes, Wait::kNo)) {
    return absl::ResourceExhaustedError("disk has no room");
  }
  // Earlier parts that were written with a weaker promise are written again.
  const size_t first = claim->disk_ack >= ack ? on_disk : 0;
  std::vector<uint16_t> indices;
  for (size_t i = first; i < end; ++i) indices.push_back(i);
  absl::Status written;
  std::vector<SegmentBody> list;
  for (absl::StatusOr<SharedBytes>& body : ReadClaimed(claim, indices)) {
    written.Update(body.status());
    if (written.ok()) list.push_back({{number, indices[list.size()]}, *std::move(body)});
  }
  const bool damaged = !written.ok();
  if (!damaged) written = parts_.catalog->PutPage(claim->Record(end), list, ack);
  MutexLock lock(mu_);
  reserved(TierId::kDisk) -= bytes;
  changed_.NotifyAll();
  if (!written.ok()) {
    counters_.disk_errors += damaged ? 0 : 1;
    if (claim.page() != nullptr && !damaged) claim->disk_failed = true;
    return written;
  }
  index_.Change(claim.page(), [&](PageEntry& page) {
    for (size_t i = on_disk; i < end; ++i) page.segments()[i].tiers.Add(TierId::kDisk);
    page.disk_ack = first == 0 ? ack : std::min(page.disk_ack, ack);
  });
  return absl::OkStatus();
}

// The segments leave `from`; each has another copy. On disk they must be the last ones there. `by`
// is the tier whose policy wanted it.
void TieredStore::Impl::DropCopies(Claim& claim, TierId from, std::span<const uint16_t> indices,
                                   std::optional<TierId> by) {
  if (indices.empty()) return;
  std::vector<SegmentId> ids;
  uint64_t bytes = 0;
  const size_t on_disk = claim->on_disk();
  const bool off_disk = from == TierId::kDisk && indices.front() == 0;
  for (const uint16_t i : indices) {
    ids.push_back(claim->id(i));
    bytes += claim->BytesOf(i);
  }
  {
    MutexLock lock(mu_);
    const auto drop = [&](PageEntry& page) {
      for (const uint16_t i : indices) page.segments()[i].tiers.Remove(from);
    };
    if (off_disk) EraseLater(*claim.page(), on_disk, std::exchange(bytes, 0));
    index_.Change(claim.page(), drop, by);
    reserved(from) += bytes;  // until they have really gone
  }
  absl::Status erased;
  if (off_disk) {
    EraseNow().IgnoreError();  // it is tried again
  } else if (from != TierId::kDisk) {
    erased = tier(from).Erase(ids);
  } else {
    erased = parts_.catalog->TruncatePage(claim->Record(indices.front()), on_disk, claim->disk_ack);
  }
  MutexLock lock(mu_);
  reserved(from) -= bytes;
  counters_.disk_errors += erased.ok() ? 0 : 1;
  changed_.NotifyAll();
}

// Forgets segments [keep, end) of the page in every tier; at 0 the page. A `whole` page goes whole.
// FAILED_PRECONDITION when that is only policy and the page is protected.
absl::Status TieredStore::Impl::Truncate(Claim& claim, size_t keep, Why why,
                                         std::optional<TierId> by) {
  if (keep >= claim->segment_count) return absl::OkStatus();  // damage has cut it already
  if (claim->whole) keep = 0;
  const size_t had = claim->segment_count, on_disk = claim->on_disk();
  const PageNumber number = claim->number;
  std::array<std::vector<SegmentId>, kTiers> ids;
  std::array<uint64_t, kTiers> bytes{};
  constexpr auto kDisk = static_cast<size_t>(TierId::kDisk);
  for (size_t i = keep; i < had; ++i) {
    for (int t = 0; t < kTiers; ++t) {
      if (!claim->segments()[i].tiers.Has(static_cast<TierId>(t))) continue;
      ids[t].push_back(claim->id(i));
      bytes[t] += claim->BytesOf(i);
    }
  }
  std::unique_ptr<PageEntry> removed;
  {
    MutexLock lock(mu_);
    if (why == Why::kPolicy && claim->is_protected()) {
      return absl::FailedPreconditionError("the page is leased or pinned");
    }
    if (why != Why::kDelete) {
      counters_.dropped_segments += had - keep;
      counters_.dropped_pages += keep == 0 ? 1 : 0;
    }
    if (keep == 0) {
      // A write that failed may have reached the log all the same.
      const bool doubtful = why == Why::kDelete && claim->disk_failed;
      EraseLater(*claim.page(), doubtful ? had : on_disk, std::exchange(bytes[kDisk], 0));
      removed = index_.Remove(claim.page(), by);
      parts_.observer->PageWent(removed->space, removed->key());
      --claims_;
      claim.PageWasRemoved();
    } else {
      index_.Change(
          claim.page(), [&](PageEntry& page) { page.Truncate(keep); }, by);
    }
    for (int t = 0; t < kTiers; ++t) reserved_[t] += bytes[t];
    changed_.NotifyAll();
  }
  absl::Status erased;
  for (const TierId t : {TierId::kGpu, TierId::kHost}) {
    const auto& gone = ids[static_cast<size_t>(t)];
    if (!gone.empty()) erased.Update(tier(t).Erase(gone));
  }
  if (keep > 0 && on_disk > keep) {
    erased.Update(parts_.catalog->TruncatePage(claim->Record(keep), on_disk, claim->disk_ack));
  }
  if (keep == 0 && why != Why::kDelete) EraseNow().IgnoreError();  // it is tried again
  MutexLock lock(mu_);
  for (int t = 0; t < kTiers; ++t) reserved_[t] -= bytes[t];
  counters_.disk_errors += erased.ok() ? 0 : 1;
  changed_.NotifyAll();
  // What is cut off is forgotten here; at worst it lies on disk until the next write succeeds.
  if (!erased.ok()) Log().warn("page {}: {}", number, erased.ToString());
  return absl::OkStatus();
}

absl::Status TieredStore::Impl::SetBudget(TierId t, uint64_t bytes) {
  if (bytes > 0 && !tier(t).holds_bytes()) {
    return absl::FailedPreconditionError(
        absl::StrCat("there is no ", TierName(t), " tier to give bytes to"));
  }
  {
    MutexLock lock(mu_);
    budgets_[static_cast<size_t>(t)] = bytes;
    ceiling_[static_cast<size_t>(t)] = Held(t);
    index_.SetBudget(t, bytes);
    wake_.NotifyOne();
    changed_.NotifyAll();
  }
  CoolUntil(t, bytes, 0, Wait::kYes);
  return absl::OkStatus();
}

absl::Status TieredStore::Impl::Shrink(TierId t, uint64_t bytes) {
  if (CoolUntil(t, bytes, 0, Wait::kYes)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(TierName(t), " cannot shrink so far: the rest is leased, pinned or in use"));
}

void TieredStore::Impl::RunDemotion() {
  EraseNow().IgnoreError();  // the next round tries again
  KeepIndexWithin().IgnoreError();
  for (const TierId t : {TierId::kGpu, TierId::kHost, TierId::kDisk}) {
    {
      MutexLock lock(mu_);
      ReapLeases();
      if (Held(t) <= options_.high_watermark * budget(t)) continue;
    }
    CoolUntil(t, static_cast<uint64_t>(options_.low_watermark * budget(t)), 0, Wait::kNo);
  }
}

void TieredStore::Impl::StartBackground() {
  background_ = std::thread([this] {
    for (;;) {
      {
        MutexLock lock(mu_);
        if (!stop_) wake_.WaitFor(mu_, kBackgroundPeriod);
        if (stop_) return;
      }
      RunDemotion();
    }
  });
}

}  // namespace kvstow
