#include "storage/trace/simulator.h"

#include <limits>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"

namespace kvstow {
double SimulationResult::hit_rate() const {
  return references == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(references);
}

SimulationResult Simulate(const Trace& trace, const PolicyInfo& policy, uint64_t capacity_bytes,
                          std::span<const SimulatedLevel> levels, absl::FunctionRef<void()> step) {
  SimulatedCache cache(trace, policy, capacity_bytes, levels);
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
