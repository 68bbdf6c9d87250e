#include "service/transports/slot_table.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/shared_memory.h"
#include "base/status_macros.h"

namespace kvstow {

SlotTable::SlotTable(std::span<uint8_t> memory) : memory_(memory) {
  if (!memory.empty()) free_.emplace(0, memory.size() / kSharedPageBytes * kSharedPageBytes);
}

absl::StatusOr<SlotTable::Allocated> SlotTable::Allocate(uint64_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("a slot has at least 1 byte");
  MutexLock lock(mu_);
  if (lent_ == kMaxSlots) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a session has at most ", kMaxSlots, " slots: free some"));
  }
  const uint64_t pages = bytes > memory_.size() ? bytes : RoundUpToSharedPage(bytes);
  const auto fits = std::ranges::find_if(free_, [&](const auto& f) { return f.second >= pages; });
  if (fits == free_.end()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no ", bytes, " bytes are free in one piece of the session's ", memory_.size()));
  }
  const auto [offset, free] = *fits;
  free_.erase(fits);
  if (free > pages) free_.emplace(offset + pages, free - pages);
  if (unused_.empty()) {
    unused_.push_back(static_cast<uint32_t>(entries_.size()));
    entries_.emplace_back();
  }
  const uint32_t index = unused_.back();
  unused_.pop_back();
  Entry& entry = entries_[index];
  entry = {.offset = offset,
           .bytes = pages,
           .asked = bytes,
           .generation = entry.generation + 1,
           .users = 0,
           .lent = true};
  ++lent_;
  return Allocated{index, entry.generation, offset, bytes};
}

absl::StatusOr<SlotTable::Entry*> SlotTable::Find(const v1::Slot& slot) {
  if (slot.index() >= entries_.size() || slot.generation() == 0 ||
      slot.generation() > entries_[slot.index()].generation) {
    return absl::FailedPreconditionError(
        absl::StrCat("slot ", slot.index(), ".", slot.generation(), " was never lent"));
  }
  Entry& entry = entries_[slot.index()];
  if (!entry.lent || entry.generation != slot.generation()) {
    return absl::FailedPreconditionError(
        absl::StrCat("slot ", slot.index(), ".", slot.generation(), " was freed"));
  }
  return &entry;
}

absl::Status SlotTable::Free(const v1::Slot& slot) {
  MutexLock lock(mu_);
  KVSTOW_ASSIGN_OR_RETURN(Entry* const entry, Find(slot));
  entry->lent = false;
  --lent_;
  if (entry->users == 0) GiveBack(slot.index());
  return absl::OkStatus();
}

// The memory joins what is free beside it.
void SlotTable::GiveBack(uint32_t index) {
  const Entry& entry = entries_[index];
  auto at = free_.emplace(entry.offset, entry.bytes).first;
  if (const auto next = std::next(at);
      next != free_.end() && at->first + at->second == next->first) {
    at->second += next->second;
    free_.erase(next);
  }
  if (at != free_.begin()) {
    const auto before = std::prev(at);
    if (before->first + before->second == at->first) {
      before->second += at->second;
      free_.erase(at);
    }
  }
  if (entry.generation < std::numeric_limits<uint32_t>::max()) unused_.push_back(index);
}

absl::StatusOr<SlotTable::Range> SlotTable::Use(const v1::SlotRange& range) {
  MutexLock lock(mu_);
  KVSTOW_ASSIGN_OR_RETURN(Entry* const entry, Find(range.slot()));
  if (range.offset() > entry->asked || range.bytes() > entry->asked - range.offset()) {
    return absl::InvalidArgumentError(absl::StrCat(range.bytes(), " bytes at ", range.offset(),
                                                   " are not in slot ", range.slot().index(),
                                                   ", which has ", entry->asked));
  }
  ++entry->users;
  return Range(this, range.slot().index(),
               memory_.subspan(entry->offset + range.offset(), range.bytes()));
}

void SlotTable::Release(uint32_t index) {
  MutexLock lock(mu_);
  Entry& entry = entries_[index];
  if (--entry.users == 0 && !entry.lent) GiveBack(index);
}

SlotTable::Range::~Range() {
  if (table_ != nullptr) table_->Release(index_);
}

size_t SlotTable::slots() const {
  MutexLock lock(mu_);
  return lent_;
}

uint64_t SlotTable::free_bytes() const {
  MutexLock lock(mu_);
  uint64_t bytes = 0;
  for (const auto& [offset, free] : free_) bytes += free;
  return bytes;
}

}  // namespace kvstow
