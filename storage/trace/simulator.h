// Replays a trace against an eviction policy, and against bounds that no policy can pass.
//
// Every request first counts the leading blocks that are present. Then it touches or inserts its
// blocks in order, and evicts what is above the capacity. A server does the same for a Lookup, the
// Gets and the Puts that follow. The hit rate is leading blocks present over all blocks.
//
// A block may be a page of several levels (segments). A victim then loses its last level, and goes
// with its first. A page loses a level for good: until the page is gone and put again, it is hit as
// it is, since nobody puts a present page again.
#ifndef KVSTOW_STORAGE_TRACE_SIMULATOR_H_
#define KVSTOW_STORAGE_TRACE_SIMULATOR_H_

#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "storage/policies/eviction_policy.h"
#include "storage/trace/simulated_cache.h"
#include "storage/trace/trace_reader.h"

namespace kvstow {

struct SimulationResult {
  uint64_t references = 0, hits = 0, evictions = 0;
  double hit_bytes = 0;  // bytes of the hits, summed up
  double hit_error = 0;  // gain that the hits had lost, summed up
  double hit_rate() const;
};

// `levels` are those of a page; evictions count levels. Calls `step` after every request.
SimulationResult Simulate(
    const Trace& trace, const PolicyInfo& policy, uint64_t capacity_bytes,
    std::span<const SimulatedLevel> levels, absl::FunctionRef<void()> step = [] {});

// Belady's bound: evicts the block whose next use is the farthest, which may be the new one.
SimulationResult SimulateBelady(
    const Trace& trace, uint64_t capacity_blocks, absl::FunctionRef<void()> step = [] {});

// Returns the hit rate of a cache that holds everything.
double InfiniteHitRate(const Trace& trace);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_TRACE_SIMULATOR_H_
