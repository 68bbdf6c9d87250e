// The slots of a local session: parts of its memory, lent to the worker by (index, generation).
//
// The table is the server's own memory: nothing that the worker can write decides what a slot is. A
// request names a slot and a range in it; Use() checks the range and holds it. A slot that is freed
// meanwhile gives its memory back when the last holder is gone. An index comes back with another
// generation, so a freed name is refused for ever (after 2^32 - 1 generations the index is
// retired).
//
// Thread-safe; uses outlive the table's owner only if the memory does. Errors: RESOURCE_EXHAUSTED
// when there is no room, INVALID_ARGUMENT for a slot of 0 bytes and for a range that is not the
// slot's, FAILED_PRECONDITION for a slot that is not there (any more).
#ifndef KVSTOW_SERVICE_TRANSPORTS_SLOT_TABLE_H_
#define KVSTOW_SERVICE_TRANSPORTS_SLOT_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "kvstow/v1/local.pb.h"

namespace kvstow {

inline constexpr size_t kMaxSlots = 4096;  // of a session, at once

class SlotTable {
 public:
  // Lends from `memory`, which starts at a shared page.
  explicit SlotTable(std::span<uint8_t> memory);

  struct Allocated {
    uint32_t index = 0, generation = 0;
    uint64_t offset = 0, bytes = 0;  // in the memory; bytes as asked for
  };
  absl::StatusOr<Allocated> Allocate(uint64_t bytes);
  absl::Status Free(const v1::Slot& slot);

  // A range of a slot, held until this goes.
  class Range {
   public:
    Range(Range&& other) noexcept
        : table_(std::exchange(other.table_, nullptr)),
          index_(other.index_),
          bytes_(other.bytes_) {}
    Range& operator=(Range&&) = delete;
    ~Range();
    std::span<uint8_t> bytes() const { return bytes_; }

   private:
    friend class SlotTable;
    Range(SlotTable* table, uint32_t index, std::span<uint8_t> bytes)
        : table_(table), index_(index), bytes_(bytes) {}
    SlotTable* table_;
    uint32_t index_;
    std::span<uint8_t> bytes_;
  };
  absl::StatusOr<Range> Use(const v1::SlotRange& range);

  size_t slots() const;         // lent slots
  uint64_t free_bytes() const;  // also bytes that no slot of that size would fit

 private:
  struct Entry {
    uint64_t offset = 0, bytes = 0;  // bytes in whole shared pages; 0 = not in use
    uint64_t asked = 0;
    uint32_t generation = 0;
    uint32_t users = 0;
    bool lent = false;
  };

  absl::StatusOr<Entry*> Find(const v1::Slot& slot) KVSTOW_REQUIRES(mu_);
  void GiveBack(uint32_t index) KVSTOW_REQUIRES(mu_);
  void Release(uint32_t index);

  const std::span<uint8_t> memory_;
  mutable Mutex mu_;
  std::vector<Entry> entries_ KVSTOW_GUARDED_BY(mu_);
  std::vector<uint32_t> unused_ KVSTOW_GUARDED_BY(mu_);       // indices
  std::map<uint64_t, uint64_t> free_ KVSTOW_GUARDED_BY(mu_);  // offset -> bytes, no two adjacent
  size_t lent_ KVSTOW_GUARDED_BY(mu_) = 0;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_TRANSPORTS_SLOT_TABLE_H_
