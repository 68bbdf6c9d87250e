#include "storage/store/residency/rooms.h"

#include <algorithm>

namespace kvstow {

Rooms::Answer Rooms::Find(Wanted& wanted, Choose choose) {
  const TierId t = wanted.tier;
  const auto at = static_cast<size_t>(t);
  MutexLock lock(residency_.mu_);
  for (;;) {
    residency_.ReapLeases();
    const uint64_t held = residency_.Held(t) + wanted.bytes;
    const uint64_t room = std::min(wanted.limit, residency_.budget(t));
    if (wanted.bytes > room) return {};  // not even alone
    if (held <= room) {
      residency_.reserved_[at] += wanted.bytes;
      TierBytes taken{};
      taken[at] = wanted.bytes;
      return {.is = Answer::Is::kRoom, .room = Room(&residency_, taken), .page = {}};
    }
    // While the disk refuses removals, those of more pages make no room.
    const uint64_t busy = residency_.unerased_.busy_bytes();
    if (t == TierId::kDisk && residency_.unerased_.bytes() > busy) {
      return {.is = Answer::Is::kErase, .room = {}, .page = {}};
    }
    if (PageEntry* const page = choose(residency_.index_); page != nullptr) {
      return {.is = Answer::Is::kPage, .room = {}, .page = Claim::Begin(residency_, page)};
    }
    const bool under_way = residency_.claims_ > 0 || residency_.reserved_[at] > 0 || busy > 0;
    if (wanted.wait == Wait::kNo || !under_way || --wanted.waits_left < 0) return {};
    residency_.changed_.Wait(residency_.mu_);
  }
}

Rooms::Answer Rooms::FindForIndex(Choose choose) {
  const uint64_t limit = residency_.options_.index_bytes;
  MutexLock lock(residency_.mu_);
  if (limit == 0 || residency_.index_.usage().index_bytes <= limit) {
    return {.is = Answer::Is::kRoom, .room = {}, .page = {}};
  }
  residency_.ReapLeases();
  PageEntry* const page = choose(residency_.index_);
  if (page == nullptr) return {};
  return {.is = Answer::Is::kPage, .room = {}, .page = Claim::Begin(residency_, page)};
}

bool Rooms::IsAboveHigh(TierId t) {
  MutexLock lock(residency_.mu_);
  residency_.ReapLeases();
  return residency_.Held(t) > residency_.options_.high_watermark * residency_.budget(t);
}

void Rooms::SetBudget(TierId t, uint64_t bytes) {
  MutexLock lock(residency_.mu_);
  residency_.budgets_[static_cast<size_t>(t)] = bytes;
  residency_.ceiling_[static_cast<size_t>(t)] = residency_.Held(t);
  residency_.index_.SetBudget(t, bytes);
  residency_.changed_.NotifyAll();
}

}  // namespace kvstow
