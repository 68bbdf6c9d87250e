#include "storage/trace/fleet.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "storage/trace/simulated_cache.h"
#include "storage/trace/simulator.h"

namespace kvstow {
namespace {

constexpr SimulatedLevel kWhole{.bytes = kSimulatedBlockBytes};

// A cache that holds more than all blocks has room for all, and no number overflows.
uint64_t CapacityBytes(const Trace& trace, uint64_t blocks) {
  return std::min<uint64_t>(blocks, trace.parents.size() + 1) * kSimulatedBlockBytes;
}

class Fleet {
 public:
  Fleet(const Trace& trace, const PolicyInfo& policy, const FleetOptions& options)
      : has_remote_(options.remote_blocks > 0),
        remote_(trace, **FindEvictionPolicy("lru"), CapacityBytes(trace, options.remote_blocks),
                {&kWhole, 1}),
        fetches_(trace.parents.size()),
        references_(options.nodes) {
    for (uint32_t n = 0; n < options.nodes; ++n) {
      nodes_.push_back(std::make_unique<SimulatedCache>(
          trace, policy, CapacityBytes(trace, options.node_blocks), std::span(&kWhole, 1)));
    }
  }

  void Serve(const TraceRequest& request, uint32_t number) {
    SimulatedCache& node = *nodes_[number];
    const std::vector<uint64_t>& blocks = request.blocks;
    ++result_.requests;
    result_.references += blocks.size();
    references_[number] += blocks.size();
    size_t here = 0;
    while (here < blocks.size() && node.Has(blocks[here])) ++here;
    result_.local_hits += here;
    const size_t there = Fetch(blocks, here);
    result_.misses += blocks.size() - there;
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (i >= there && !node.Has(blocks[i])) Offer(blocks[i]);
      node.Use(blocks[i]);
    }
  }

  FleetResult Finish() {
    result_.remote_evictions = remote_.evictions();
    if (!fetches_.empty()) result_.hottest_fetches = *std::ranges::max_element(fetches_);
    result_.busiest_references = *std::ranges::max_element(references_);
    return result_;
  }

 private:
  // Fetches the blocks from `begin` on that the remote store has, up to the first that it has not.
  // Returns where they end.
  size_t Fetch(const std::vector<uint64_t>& blocks, size_t begin) {
    if (!has_remote_) return begin;
    result_.asked += blocks.size() - begin;
    size_t end = begin;
    for (; end < blocks.size() && remote_.Has(blocks[end]); ++end) {
      remote_.Use(blocks[end]);
      ++fetches_[blocks[end]];
      ++result_.remote_hits;
    }
    return end;
  }

  void Offer(uint64_t block) {
    if (!has_remote_) return;
    ++result_.offered;
    if (remote_.Has(block)) return;
    ++result_.sent;
    remote_.Use(block);
    result_.most_remote_blocks =
        std::max(result_.most_remote_blocks, remote_.used_bytes() / kSimulatedBlockBytes);
  }

  const bool has_remote_;
  SimulatedCache remote_;
  std::vector<std::unique_ptr<SimulatedCache>> nodes_;
  std::vector<uint32_t> fetches_;     // of each block
  std::vector<uint64_t> references_;  // of each node
  FleetResult result_;
};

}  // namespace

FleetResult SimulateFleet(const Trace& trace, const PolicyInfo& policy, const FleetOptions& options,
                          absl::FunctionRef<void()> step) {
  Fleet fleet(trace, policy, options);
  const std::vector<uint32_t> nodes = NodesOf(trace, options.routing, options.nodes, options.seed);
  for (size_t i = 0; i < nodes.size(); ++i) {
    fleet.Serve(trace.requests[i], nodes[i]);
    step();
  }
  return fleet.Finish();
}

double PooledHitRate(const Trace& trace, const PolicyInfo& policy, uint32_t nodes,
                     uint64_t node_blocks, absl::FunctionRef<void()> step) {
  const uint64_t most = trace.parents.size() + 1;
  const uint64_t blocks = std::min(node_blocks, most) * nodes;
  return Simulate(trace, policy, CapacityBytes(trace, blocks), {&kWhole, 1}, step).hit_rate();
}

}  // namespace kvstow
