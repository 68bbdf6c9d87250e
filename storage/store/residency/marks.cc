#include "storage/store/residency/marks.h"

#include <array>
#include <utility>

#include "base/status_macros.h"

namespace kvstow {
namespace {

constexpr auto kDisk = static_cast<size_t>(TierId::kDisk);

bool IsZero(const TierBytes& bytes) { return bytes == TierBytes{}; }

// How many leading segments are to be erased on disk. A write that failed may have reached the log
// all the same.
size_t MayBeOnDisk(const PageEntry& page) {
  return page.disk_failed ? page.segment_count : page.on_disk();
}

}  // namespace

void Room::Release() {
  if (residency_ == nullptr || IsZero(bytes_)) return;
  Residency& residency = *residency_;
  MutexLock lock(residency.mu_);
  residency.Return(tenant_, Take());
}

void Room::Add(Room other) {
  if (residency_ == nullptr) return std::swap(*this, other);
  const TierBytes more = other.Take();
  for (int t = 0; t < kTiers; ++t) bytes_[t] += more[t];
}

Claim Claim::Begin(Residency& residency, PageEntry* page) {
  page->busy = true;
  ++residency.claims_;
  return Claim(residency, page, residency.index_.TenantOf(page->space));
}

void Claim::Promise(Residency& residency, Claim& claim, const TierBytes& bytes) {
  claim.promised_ = bytes;
  for (const TierId t : kAllTiers) {
    residency.index_.tenants().Promise(claim.tenant_, t, bytes[static_cast<size_t>(t)]);
  }
}

void Claim::End() {
  --residency_->claims_;
  for (const TierId t : kAllTiers) {
    residency_->index_.tenants().Promise(tenant_, t, -promised_[static_cast<size_t>(t)]);
  }
  residency_->changed_.NotifyAll();
}

Claim::~Claim() {
  if (page_ == nullptr) return;
  MutexLock lock(residency_->mu_);
  page_->busy = false;
  End();
}

std::optional<Claim> Claim::Take(Residency& residency, const PageRef& ref, Wait wait) {
  MutexLock lock(residency.mu_);
  for (;;) {
    PageEntry* const page = residency.index_.Find(ref);
    if (page == nullptr) return std::nullopt;
    if (!page->busy) return Begin(residency, page);
    if (wait == Wait::kNo) return std::nullopt;
    residency.changed_.Wait(residency.mu_);
  }
}

std::optional<Claim> Claim::TakeNumber(Residency& residency, const PageName& name,
                                       PageNumber number) {
  PageRef ref{.number = number};
  {
    MutexLock lock(residency.mu_);
    ref.item = residency.index_.IdFor(name);
  }
  return Take(residency, ref, Wait::kYes);
}

absl::StatusOr<Claim> Claim::TakeToDelete(Residency& residency, const PageName& name, bool force) {
  MutexLock lock(residency.mu_);
  residency.ReapLeases();
  PageEntry* page = residency.index_.Find(name);
  while (page != nullptr && page->busy) {
    residency.changed_.Wait(residency.mu_);
    page = residency.index_.Find(name);
  }
  if (page == nullptr) return absl::NotFoundError("no such page");
  if (page->leases > 0 && !force) {
    return absl::FailedPreconditionError("the page is leased; use force to delete it");
  }
  return Begin(residency, page);
}

void Claim::Change(absl::FunctionRef<void(PageEntry&)> edit, Room arrived) {
  MutexLock lock(residency_->mu_);
  residency_->Return(tenant_, arrived.Take());
  residency_->index_.Change(page_, edit);
}

void Claim::Note(absl::FunctionRef<void(PageEntry&)> edit) {
  MutexLock lock(residency_->mu_);
  edit(*page_);
}

Room Claim::DropCopies(TierId from, std::span<const uint16_t> indices, std::optional<TierId> by) {
  TierBytes leaving{};
  uint64_t& bytes = leaving[static_cast<size_t>(from)];
  for (const uint16_t i : indices) bytes += page_->BytesOf(i);
  const size_t on_disk = page_->on_disk();
  MutexLock lock(residency_->mu_);
  if (from == TierId::kDisk && indices.front() == 0) {
    residency_->EraseLater(*page_, on_disk, std::exchange(bytes, 0));
  }
  residency_->index_.Change(
      page_,
      [&](PageEntry& page) {
        for (const uint16_t i : indices) page.segments()[i].tiers.Remove(from);
      },
      by);
  residency_->Reserve(tenant_, leaving);  // until they have really gone
  return Room(residency_, tenant_, leaving);
}

absl::StatusOr<Room> Claim::Truncate(size_t keep, Why why, std::optional<TierId> by) {
  const size_t had = page_->segment_count;
  TierBytes leaving{};
  for (size_t i = keep; i < had; ++i) {
    for (const TierId t : kAllTiers) {
      if (page_->segments()[i].tiers.Has(t)) leaving[static_cast<size_t>(t)] += page_->BytesOf(i);
    }
  }
  std::unique_ptr<PageEntry> removed;  // freed after the lock
  MutexLock lock(residency_->mu_);
  if (why == Why::kPolicy && page_->is_protected()) {
    return absl::FailedPreconditionError("the page is leased or pinned");
  }
  if (why != Why::kDelete) {
    residency_->counters_.dropped_segments += had - keep;
    residency_->counters_.dropped_pages += keep == 0 ? 1 : 0;
  }
  if (keep == 0) {
    residency_->EraseLater(*page_, MayBeOnDisk(*page_), std::exchange(leaving[kDisk], 0));
    removed = residency_->index_.Remove(std::exchange(page_, nullptr), by);
    residency_->options_.observer->PageWent(removed->space, removed->key());
    End();
  } else {
    residency_->index_.Change(
        page_, [&](PageEntry& page) { page.Truncate(keep); }, by);
  }
  residency_->Reserve(tenant_, leaving);
  residency_->changed_.NotifyAll();
  return Room(residency_, tenant_, leaving);
}

Claim::Replaced Claim::Replace(std::unique_ptr<PageEntry> page) {
  const auto bytes_by_tier = [](const PageIndex& index) {
    return TierBytes{index.bytes(TierId::kGpu), index.bytes(TierId::kHost),
                     index.bytes(TierId::kDisk)};
  };
  Replaced out;
  TierBytes leaving{};
  MutexLock lock(residency_->mu_);
  const bool stays = page_->is_protected();
  if (stays) {
    out.lost = std::move(page);
  } else {
    const uint64_t had = page_->BytesOf(0, page_->segment_count);
    residency_->counters_.cooled_pages += 1;
    residency_->counters_.cooled_bytes += had - page->BytesOf(0, page->segment_count);
    const TierBytes before = bytes_by_tier(residency_->index_);
    out.lost = residency_->index_.Replace(std::exchange(page_, nullptr), std::move(page));
    End();
    const TierBytes after = bytes_by_tier(residency_->index_);
    // Until the old form has really gone.
    for (int t = 0; t < kTiers; ++t) leaving[t] = before[t] - after[t];
  }
  // Before the old form goes, the new one survives what the old one did: power loss too.
  residency_->EraseLater(*out.lost, MayBeOnDisk(*out.lost), std::exchange(leaving[kDisk], 0),
                         /*sync_first=*/!stays);
  residency_->Reserve(tenant_, leaving);
  residency_->changed_.NotifyAll();
  out.leaving = Room(residency_, tenant_, leaving);
  return out;
}

std::optional<Room> Claim::SpareRoom(TierId t, uint64_t bytes) {
  const auto at = static_cast<size_t>(t);
  MutexLock lock(residency_->mu_);
  const TieredStoreOptions& options = residency_->options_;
  const double watermark = page_->disk_uses < 2 ? options.low_watermark : options.high_watermark;
  const auto room = static_cast<uint64_t>(watermark * static_cast<double>(residency_->budget(t)));
  const Tenants& tenants = residency_->index_.tenants();
  if (residency_->index_.bytes(t) + residency_->reserved_[at] + bytes > room) return std::nullopt;
  if (tenants.Held(tenant_, t) + bytes > tenants.LimitOf(tenant_, t)) return std::nullopt;
  TierBytes taken{};
  taken[at] = bytes;
  residency_->Reserve(tenant_, taken);
  return Room(residency_, tenant_, taken);
}

PageNumber Claim::NewNumber() {
  MutexLock lock(residency_->mu_);
  return residency_->next_number_++;
}

absl::StatusOr<PendingName::Taken> PendingName::Take(Residency& residency,
                                                     const PageToStore& page) {
  MutexLock lock(residency.mu_);
  while (residency.pending_.contains(page.name)) residency.changed_.Wait(residency.mu_);
  KVSTOW_RETURN_IF_ERROR(residency.spaces_.CheckNotDropped(page.name.space));
  PageEntry* const old = residency.index_.Find(page.name);
  if (old == nullptr) {
    residency.pending_.insert(page.name);
    const uint64_t parent = residency.index_.ParentOf(page.name, page.parent_key);
    return Taken{.outcome = PutOutcome::kStored,
                 .there = {},
                 .name = PendingName(&residency, &page.name, residency.next_number_++, parent)};
  }
  if (old->raw_digest != page.raw_digest) {
    ++residency.counters_.conflicts;
    return Taken{.outcome = PutOutcome::kConflict, .there = old->ref(), .name = {}};
  }
  if (old->leases == 0) residency.index_.Touch(old, residency.SecondsOpen());
  return Taken{.outcome = PutOutcome::kAlreadyThere, .there = old->ref(), .name = {}};
}

PendingName::~PendingName() {
  if (residency_ == nullptr) return;
  MutexLock lock(residency_->mu_);
  Residency& residency = *residency_;
  residency.pending_.erase(*name_);
  if (has_place_) {
    residency.index_.tenants().ReservePage(residency.index_.TenantOf(name_->space), -uint64_t{1});
  }
  residency.changed_.NotifyAll();
}

bool PendingName::Publish(std::unique_ptr<PageEntry> page, Room room) {
  Residency& residency = *std::exchange(residency_, nullptr);
  const TierSet tiers = page->segments()[0].tiers;
  MutexLock lock(residency.mu_);
  residency.pending_.erase(*name_);
  const TenantId tenant = residency.index_.TenantOf(page->space);
  if (has_place_) residency.index_.tenants().ReservePage(tenant, -uint64_t{1});
  page->used_s = residency.SecondsOpen();
  residency.options_.observer->PageCame(page->space, page->key(), page->tokens);
  residency.index_.Insert(std::move(page));
  ++residency.counters_.puts;
  residency.Return(tenant, room.Take());
  for (const TierId t : kAllTiers) {
    if (!tiers.Has(t)) continue;
    if (residency.Held(t) > residency.options_.high_watermark * residency.budget(t)) return true;
  }
  return false;
}

}  // namespace kvstow
