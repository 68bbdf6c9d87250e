#include "storage/trace/fleet.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "storage/policies/send_queue.h"
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
      : trace_(trace),
        has_remote_(options.remote_blocks > 0),
        sent_per_second_(options.sent_per_second),
        remote_(trace, **FindEvictionPolicy("lru"), CapacityBytes(trace, options.remote_blocks),
                {&kWhole, 1}),
        fetches_(trace.parents.size()),
        references_(options.nodes),
        waiting_(options.nodes, SendQueue<uint64_t>(trace.parents.size())),
        may_send_(options.nodes) {
    for (uint32_t n = 0; n < options.nodes; ++n) {
      nodes_.push_back(std::make_unique<SimulatedCache>(
          trace, policy, CapacityBytes(trace, options.node_blocks), std::span(&kWhole, 1)));
    }
  }

  void Serve(const TraceRequest& request, uint32_t number) {
    SendUntil(request.time_s);
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
      if (node.Has(blocks[i])) {
        waiting_[number].Use(blocks[i]);
      } else if (i >= there) {
        Offer(number, blocks[i]);
      }
      node.Use(blocks[i]);
    }
  }

  FleetResult Finish() {
    result_.remote_evictions = remote_.evictions();
    for (const auto& waiting : waiting_) result_.unsent += waiting.size();
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

  void Offer(uint32_t number, uint64_t block) {
    if (!has_remote_) return;
    ++result_.offered;
    if (sent_per_second_ == 0) {
      Send(block);
    } else {
      waiting_[number].Add(block, trace_.parents[block]);
    }
  }

  // Returns whether the remote store had not the block.
  bool Send(uint64_t block) {
    if (remote_.Has(block)) return false;
    ++result_.sent;
    remote_.Use(block);
    result_.most_remote_blocks =
        std::max(result_.most_remote_blocks, remote_.used_bytes() / kSimulatedBlockBytes);
    return true;
  }

  // Sends what the rate allows until then. A node that has nothing to send saves nothing up.
  void SendUntil(double time_s) {
    const double fresh = (time_s - time_s_) * sent_per_second_;
    time_s_ = time_s;
    if (fresh <= 0) return;
    for (size_t n = 0; n < nodes_.size(); ++n) {
      SendQueue<uint64_t>& waiting = waiting_[n];
      for (may_send_[n] += fresh; may_send_[n] >= 1 && waiting.size() > 0;) {
        const uint64_t block = waiting.Take(1)[0];
        if (!nodes_[n]->Has(block)) {
          ++result_.unsent;
        } else if (Send(block)) {
          may_send_[n] -= 1;
        }
      }
      if (waiting.size() == 0) may_send_[n] = std::min(may_send_[n], 1.0);
    }
  }

  const Trace& trace_;
  const bool has_remote_;
  const double sent_per_second_;
  SimulatedCache remote_;
  std::vector<std::unique_ptr<SimulatedCache>> nodes_;
  std::vector<uint32_t> fetches_;             // of each block
  std::vector<uint64_t> references_;          // of each node
  std::vector<SendQueue<uint64_t>> waiting_;  // of each node, to be sent
  std::vector<double> may_send_;              // blocks that each node may send now
  double time_s_ = 0;
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
