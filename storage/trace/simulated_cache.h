// A cache of a trace's blocks, whose victims an eviction policy chooses.
//
// A block is a page of levels. A victim loses its last level, and goes with its first. Simulators
// use it for one node (simulator.h) and for several (fleet.h). It takes two bytes for each distinct
// block of the trace. Not thread-safe.
#ifndef KVSTOW_STORAGE_TRACE_SIMULATED_CACHE_H_
#define KVSTOW_STORAGE_TRACE_SIMULATED_CACHE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "storage/policies/eviction_policy.h"
#include "storage/trace/trace_reader.h"

namespace kvstow {

// A level of every page.
struct SimulatedLevel {
  uint64_t bytes = 1;
  double gain = 1;  // error that it removes; the gains of all levels sum up to 1
};

class SimulatedCache {
 public:
  // `trace` outlives this.
  SimulatedCache(const Trace& trace, const PolicyInfo& policy, uint64_t capacity_bytes,
                 std::span<const SimulatedLevel> levels)
      : trace_(trace),
        capacity_(capacity_bytes),
        policy_(policy.make(capacity_bytes)),
        kept_(trace.parents.size()) {
    sizes_.push_back({});
    for (const SimulatedLevel& level : levels) {
      const double worth = level.gain / static_cast<double>(level.bytes);
      sizes_.push_back({sizes_.back().bytes + level.bytes, worth, sizes_.back().gain + level.gain});
    }
  }

  bool Has(uint64_t block) const { return kept_[block] > 0; }
  uint64_t BytesOf(uint64_t block) const { return sizes_[kept_[block]].bytes; }
  double ErrorOf(uint64_t block) const { return sizes_.back().gain - sizes_[kept_[block]].gain; }
  uint64_t evictions() const { return evictions_; }
  uint64_t used_bytes() const { return used_; }

  // Touches the block, or inserts it and evicts what is above the capacity.
  void Use(uint64_t block) {
    if (Has(block)) return policy_->Touch(block);
    kept_[block] = static_cast<uint16_t>(sizes_.size() - 1);
    used_ += BytesOf(block);
    const uint32_t parent = trace_.parents[block];
    policy_->Insert(block, {.bytes = BytesOf(block),
                            .worth = WorthOf(block),
                            .parent = parent == Trace::kNoParent ? PolicyItem::kNoParent : parent});
    while (used_ > capacity_) Evict();
  }

 private:
  struct Size {
    uint64_t bytes = 0;
    double worth = 0, gain = 0;
  };
  // Relative to the average byte of a whole page; nothing without the block before it.
  double WorthOf(uint64_t block) const {
    const uint32_t parent = trace_.parents[block];
    if (parent != Trace::kNoParent && !Has(parent)) return 0;
    const Size& whole = sizes_.back();
    return sizes_[kept_[block]].worth * static_cast<double>(whole.bytes) / whole.gain;
  }
  void Evict() {
    const uint64_t block = *policy_->Victim([](uint64_t) { return true; });
    used_ -= BytesOf(block);
    ++evictions_;
    if (--kept_[block] == 0) return policy_->Remove(block, true);
    used_ += BytesOf(block);
    policy_->Resize(block, BytesOf(block), WorthOf(block));
  }

  const Trace& trace_;
  const uint64_t capacity_;
  std::unique_ptr<EvictionPolicy> policy_;
  std::vector<uint16_t> kept_;  // levels of each block; 0 = it is not there
  std::vector<Size> sizes_;     // of a page with so many levels
  uint64_t used_ = 0, evictions_ = 0;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_TRACE_SIMULATED_CACHE_H_
