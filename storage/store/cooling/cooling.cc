#include "storage/store/cooling/cooling.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

using Who = Rooms::For::Who;

constexpr Duration kBackgroundPeriod = std::chrono::milliseconds(500);
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

Cooling::~Cooling() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    wake_.NotifyAll();
  }
  if (background_.joinable()) background_.join();
}

std::optional<Room> Cooling::MakeRoom(TierId t, uint64_t bytes, SpaceId space, Wait wait) {
  if (!usable(t)) return std::nullopt;
  return CoolUntil({.tier = t,
                    .bytes = bytes,
                    .limit = residency_.budget(t),
                    .by = {.who = wait == Wait::kYes ? Who::kSpace : Who::kMove, .id = space},
                    .wait = wait});
}

std::optional<Room> Cooling::CoolUntil(Rooms::Wanted wanted) {
  const TierId t = wanted.tier;
  Numbers skip, skip_hot;  // pages that could not be cooled
  bool try_hot = true, hot = false;
  const auto choose = [&](PageIndex& index, TenantId tenant) -> PageEntry* {
    PageEntry* page = std::exchange(try_hot, true) ? PickHot(index, tenant, t, skip_hot) : nullptr;
    hot = page != nullptr;
    if (!hot && skip.size() < kMaxSkipped) page = PickColdest(index, tenant, t, skip);
    return page;
  };
  for (;;) {
    Rooms::Answer answer = rooms_.Find(wanted, choose);
    switch (answer.is) {
      case Rooms::Answer::Is::kRoom:
        return std::move(answer.room);
      case Rooms::Answer::Is::kFull:
        return std::nullopt;
      case Rooms::Answer::Is::kErase:
        if (!movement_.EraseForgotten().ok()) return std::nullopt;
        continue;
      case Rooms::Answer::Is::kPage:
        break;
    }
    Claim& claim = *answer.page;
    const PageNumber number = claim->number;
    if (hot) {
      // Where none gets cold, something cools as it is, before another is tried.
      std::vector<Claim> claims = ClaimMoreHot(wanted, skip_hot, std::move(claim));
      try_hot = TakeColdForms(claims, skip_hot);
      continue;
    }
    const size_t keep = claim->KeepIn(t);
    const bool cooled = t == TierId::kDisk ? CoolDisk(claim, keep) : CoolMemory(claim, t, keep);
    if (!cooled) skip.insert(number);
  }
}

PageEntry* Cooling::PickColdest(PageIndex& index, TenantId tenant, TierId from,
                                const Numbers& skip) const {
  const auto consider = [&](const PageEntry& page) {
    if (page.busy || skip.contains(page.number)) return PageIndex::Offer::kNotNow;
    return MayLeave(page, from, page.KeepIn(from)) ? PageIndex::Offer::kTaken
                                                   : PageIndex::Offer::kHeld;
  };
  return index.Victim(from, consider, tenant);
}

// Returns whether segments [keep, end) may leave `from`. Those of a protected page may only if a
// colder tier takes them.
bool Cooling::MayLeave(const PageEntry& page, TierId from, size_t keep) const {
  if (!page.is_protected()) return true;
  if (from == TierId::kDisk) return false;
  if (usable(TierId::kDisk) || (from == TierId::kGpu && usable(TierId::kHost))) return true;
  return std::all_of(page.segments().begin() + keep, page.segments().end(),
                     [&](const PageEntry::Segment& segment) {
                       return !segment.tiers.Has(from) || segment.tiers.HasColderThan(from);
                     });
}

bool Cooling::CoolMemory(Claim& claim, TierId from, size_t keep) {
  const TierId to = from == TierId::kGpu && usable(TierId::kHost) ? TierId::kHost : TierId::kDisk;
  const double bits = options_.target_bits[static_cast<size_t>(to)];
  // Leased and pinned pages move as they are: of those nothing is truncated.
  if (keep >= SegmentsWithin(*claim, bits) &&
      movement_.Truncate(claim, keep, Why::kPolicy, from).ok()) {
    return true;
  }
  const size_t had = claim->segment_count;
  const absl::Status moved = CopyColder(claim, from, keep);
  // Where it proved damaged it was cut, which made room too: what is left gets its own step.
  if (claim.gone() || claim->segment_count < had) return true;
  if (moved.ok()) {
    const std::vector<uint16_t> leaving = claim->SegmentsIn(from, keep);
    uint64_t bytes = 0;
    for (const uint16_t i : leaving) bytes += claim->BytesOf(i);
    movement_.DropCopies(claim, from, leaving, from);
    residency_.Count([&](StoreCounters& counters) { counters.demoted_bytes += bytes; });
    return true;
  }
  // No room below: what is worth least is forgotten.
  return movement_.Truncate(claim, keep, Why::kPolicy, from).ok();
}

bool Cooling::CoolDisk(Claim& claim, size_t keep) {
  constexpr TierId kFrom = TierId::kDisk;
  const std::span<const PageEntry::Segment> segments = claim->segments();
  size_t left = keep;  // of the page: everything up to the first that is on disk only
  const size_t on_disk = claim->on_disk();
  while (left < on_disk && segments[left].tiers.Hottest() != kFrom) ++left;
  if (left < on_disk && !movement_.Truncate(claim, left, Why::kPolicy, kFrom).ok()) return false;
  if (claim.gone()) return true;
  movement_.DropCopies(claim, kFrom, claim->SegmentsIn(kFrom, keep), kFrom);
  return true;
}

// Gives those of the segments [keep, end) that are in `from` and nowhere colder a colder copy.
absl::Status Cooling::CopyColder(Claim& claim, TierId from, size_t keep) {
  std::vector<uint16_t> missing = claim->SegmentsIn(from, keep);
  std::erase_if(missing,
                [&](uint16_t i) { return claim->segments()[i].tiers.HasColderThan(from); });
  if (missing.empty()) return absl::OkStatus();
  if (from == TierId::kGpu) {
    const absl::Status copied = CopyToHost(claim, missing);
    if (copied.ok() || claim.gone()) return copied;
    if (missing.back() >= claim->segment_count) return copied;  // its tail proved damaged
  }
  // The disk holds a leading part: everything up to the last one goes with it.
  return CopyToDisk(claim, missing.back() + size_t{1}, Ack::kMemory);
}

absl::Status Cooling::CopyToHost(Claim& claim, std::span<const uint16_t> indices) {
  uint64_t bytes = 0;
  for (const uint16_t i : indices) bytes += claim->BytesOf(i);
  std::optional<Room> room = MakeRoom(TierId::kHost, bytes, claim->space, Wait::kNo);
  if (!room.has_value()) return absl::ResourceExhaustedError("host has no room");
  return movement_.CopyToHost(claim, indices, *std::move(room));
}

absl::Status Cooling::CopyToDisk(Claim& claim, size_t end, Ack ack) {
  const size_t on_disk = claim->on_disk();
  if (on_disk >= end) return movement_.Strengthen(claim, ack);
  // A copy of it that is still to be erased goes first: it has the same number.
  KVSTOW_RETURN_IF_ERROR(movement_.EraseForgotten(claim->name()));
  std::optional<Room> room =
      MakeRoom(TierId::kDisk, claim->BytesOf(on_disk, end), claim->space, Wait::kNo);
  if (!room.has_value()) return absl::ResourceExhaustedError("disk has no room");
  return movement_.CopyToDisk(claim, end, ack, *std::move(room));
}

Rooms::Answer::Is Cooling::ForgetUntil(absl::FunctionRef<Rooms::Answer(Rooms::Choose)> find) {
  TierId from = TierId::kDisk;
  const auto free = [](const PageEntry& page) {
    if (page.is_protected()) return PageIndex::Offer::kHeld;
    return page.busy ? PageIndex::Offer::kNotNow : PageIndex::Offer::kTaken;
  };
  const auto choose = [&](PageIndex& index, TenantId tenant) -> PageEntry* {
    for (const TierId t : {TierId::kDisk, TierId::kHost, TierId::kGpu}) {
      from = t;
      if (PageEntry* const page = index.Victim(t, free, tenant); page != nullptr) return page;
    }
    return nullptr;
  };
  for (;;) {
    Rooms::Answer answer = find(choose);
    if (answer.is != Rooms::Answer::Is::kPage) return answer.is;
    const absl::Status gone = movement_.Truncate(*answer.page, 0, Why::kPolicy, from);
    if (!gone.ok()) return Rooms::Answer::Is::kFull;  // it was leased at this moment
  }
}

absl::Status Cooling::MakeIndexRoom(SpaceId space) {
  const auto find = [&](Rooms::Choose choose) { return rooms_.FindForIndex(space, choose); };
  if (ForgetUntil(find) == Rooms::Answer::Is::kRoom) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the index of pages takes more than ", FormatSize(options_.index_bytes),
                   ", and all of them are leased, pinned or in use"));
}

absl::Status Cooling::MakePlace(PendingName& name, SpaceId space) {
  const auto find = [&](Rooms::Choose choose) { return rooms_.FindForPage(name, choose); };
  if (ForgetUntil(find) == Rooms::Answer::Is::kRoom) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the tenant may have ", ShareOf(space).pages,
                   " pages, and all that it has are leased, pinned or in use"));
}

absl::Status Cooling::SetBudget(TierId t, uint64_t bytes) {
  if (bytes > 0 && !movement_.HasTier(t)) {
    return absl::FailedPreconditionError(
        absl::StrCat("there is no ", TierName(t), " tier to give bytes to"));
  }
  rooms_.SetBudget(t, bytes);
  Wake();
  CoolUntil(
      {.tier = t, .limit = bytes, .by = {.who = Who::kOperator, .id = 0}, .wait = Wait::kYes});
  return absl::OkStatus();
}

void Cooling::SetShares(std::span<const std::pair<TenantId, TenantShare>> shares) {
  for (const auto& [tenant, share] : shares) rooms_.SetShare(tenant, share);
  CoolToLimits(Wait::kYes);
}

// Each tenant down to its limits, by its own pages.
void Cooling::CoolToLimits(Wait wait) {
  for (const TenantId tenant : rooms_.WithTooManyPages()) {
    ForgetUntil([&](Rooms::Choose choose) { return rooms_.FindForFewerPages(tenant, choose); });
  }
  for (const TierId t : kAllTiers) {
    for (const TenantId tenant : rooms_.OverLimit(t)) {
      CoolUntil({.tier = t,
                 .limit = UINT64_MAX,
                 .by = {.who = Who::kTenant, .id = tenant},
                 .wait = wait});
    }
  }
}

absl::Status Cooling::Shrink(TierId t, uint64_t bytes) {
  const auto room = CoolUntil(
      {.tier = t, .limit = bytes, .by = {.who = Who::kOperator, .id = 0}, .wait = Wait::kYes});
  if (room.has_value()) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(TierName(t), " cannot shrink so far: the rest is leased, pinned or in use"));
}

void Cooling::RunDemotion() {
  movement_.EraseForgotten().IgnoreError();  // the next round tries again
  MakeIndexRoom(0).IgnoreError();
  CoolToLimits(Wait::kNo);
  for (const TierId t : kAllTiers) {
    if (!rooms_.IsAboveHigh(t)) continue;
    const auto low = static_cast<uint64_t>(options_.low_watermark * residency_.budget(t));
    CoolUntil({.tier = t, .limit = low, .by = {}, .wait = Wait::kNo});
  }
}

void Cooling::StartBackground() {
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
