// An LRU stack with weights. For any item it gives the size that an LRU cache needed to still hold
// it.
//
// Mattson et al., "Evaluation techniques for storage hierarchies" (1970): LRU caches of all sizes
// are prefixes of one stack, so one pass over the references gives the hit rate of every size. The
// stack distance of an item is its own weight and that of everything touched since; an LRU of that
// capacity or more would hit. Distances are prefix sums over the times of last touches. A Fenwick
// tree over groups of 256 times holds them, O(log n) a call. The stack squeezes the dead times out
// when there are as many as live ones.
//
// The caller chooses items as small numbers, densely from 0. The stack takes about 20 bytes for
// each item on it. Not thread-safe.
#ifndef KVSTOW_STORAGE_TRACE_LRU_STACK_H_
#define KVSTOW_STORAGE_TRACE_LRU_STACK_H_

#include <cstdint>
#include <vector>

namespace kvstow {

class LruStack {
 public:
  bool Contains(uint32_t item) const {
    return item < time_of_.size() && time_of_[item] != kNowhere;
  }
  // Both must be on the stack. An item that was touched before another has a larger distance.
  bool TouchedBefore(uint32_t a, uint32_t b) const { return time_of_[a] < time_of_[b]; }
  // Returns the weight of `item` and of the items touched after it. `item` must be on the stack.
  uint64_t Distance(uint32_t item) const;
  // Puts `item` on top, with this weight (above 0), wherever it was.
  void Touch(uint32_t item, uint32_t weight);
  void Remove(uint32_t item);  // does nothing when it is not on the stack

  uint32_t items() const { return live_; }
  uint64_t weight() const { return total_; }
  uint64_t memory_bytes() const;  // what the object holds, besides itself

 private:
  static constexpr uint32_t kNowhere = UINT32_MAX;
  static constexpr uint32_t kGroup = 256;

  void Add(uint32_t time, uint64_t weight);  // modulo 2^64: adds a negative weight too
  void Compact();

  std::vector<uint32_t> time_of_;    // by item
  std::vector<uint32_t> item_at_;    // by time
  std::vector<uint32_t> weight_at_;  // by time; 0 = dead
  std::vector<uint64_t> tree_;       // Fenwick, by group of times, from 1
  uint32_t now_ = 0;                 // the next time
  uint32_t live_ = 0;
  uint64_t total_ = 0;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_TRACE_LRU_STACK_H_
