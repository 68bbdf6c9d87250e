#include "storage/trace/simulator.h"

#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"

namespace kvstow {
namespace {

// Blocks as pages of levels, and the policy that chooses among them.
class Cache {
 public:
  Cache(const Trace& trace, const PolicyInfo& policy, uint64_t capacity_bytes,
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

}  // namespace

double SimulationResult::hit_rate() const {
  return references == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(references);
}

SimulationResult Simulate(const Trace& trace, const PolicyInfo& policy, uint64_t capacity_bytes,
                          std::span<const SimulatedLevel> levels, absl::FunctionRef<void()> step) {
  Cache cache(trace, policy, capacity_bytes, levels);
  SimulationResult result{.references = trace.references};
  for (const TraceRequest& request : trace.requests) {
    for (const uint64_t block : request.blocks) {
      if (!cache.Has(block)) break;
      ++result.hits;
      result.hit_bytes += static_cast<double>(cache.BytesOf(block));
      result.hit_error += cache.ErrorOf(block);
    }
    for (const uint64_t block : request.blocks) cache.Use(block);
    step();
  }
  result.evictions = cache.evictions();
  return result;
}

SimulationResult SimulateBelady(const Trace& trace, uint64_t capacity_blocks,
                                absl::FunctionRef<void()> step) {
  constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();
  // next[i]: when the block of reference i is used again, in requests; of those of one request the
  // deeper ones are the farther ones.
  std::vector<uint64_t> next(trace.references), seen(trace.parents.size(), kNever);
  uint64_t i = trace.references;
  for (size_t r = trace.requests.size(); r-- > 0;) {
    const std::vector<uint64_t>& blocks = trace.requests[r].blocks;
    for (size_t b = blocks.size(); b-- > 0;) {
      next[--i] = seen[blocks[b]];
      seen[blocks[b]] = i;
    }
  }
  SimulationResult result{.references = trace.references};
  absl::btree_set<std::pair<uint64_t, uint64_t>> present;  // (next use, block)
  std::vector<uint64_t> next_use(trace.parents.size(), kNever);
  std::vector<bool> has(trace.parents.size());
  for (const TraceRequest& request : trace.requests) {
    for (const uint64_t block : request.blocks) {
      if (!has[block]) break;
      ++result.hits;
    }
    for (const uint64_t block : request.blocks) {
      if (has[block]) present.erase({next_use[block], block});
      next_use[block] = next[i++];
      has[block] = next_use[block] != kNever;
      if (!has[block]) continue;
      present.emplace(next_use[block], block);
      if (present.size() <= capacity_blocks) continue;
      const auto last = std::prev(present.end());
      has[last->second] = false;
      present.erase(last);
      ++result.evictions;
    }
    step();
  }
  return result;
}

double InfiniteHitRate(const Trace& trace) {
  std::vector<bool> seen(trace.parents.size());
  uint64_t hits = 0;
  for (const TraceRequest& request : trace.requests) {
    for (const uint64_t block : request.blocks) hits += seen[block] ? 1 : 0;
    for (const uint64_t block : request.blocks) seen[block] = true;
  }
  return trace.references == 0 ? 0
                               : static_cast<double>(hits) / static_cast<double>(trace.references);
}

}  // namespace kvstow
