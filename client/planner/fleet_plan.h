// Models several nodes that share a remote store on Redis: hit rates, Redis nodes, network, time to
// first token, cost.
//
// It replays the load over the nodes, with an LRU in each (storage/trace/fleet.h). The Hardware is
// that of each node; its tiers count as one. The formulas follow. b and r are the stored and raw
// bytes of a token, P is a block in stored bytes, s is the seconds of the load, and the rest are
// counts of the replay:
//
//   read, written     remote hits x P / s, and blocks sent x P / s
//   commands          as FleetResult::Commands, / s
//   Redis nodes       the largest of: most blocks there x P / (memory x fill),
//                     (read + written) / bandwidth, commands / commands a second
//   a node's network  (read + written) / nodes with the remote store; local and remote hits x P / s
//                     / nodes to workers
//   first token       prompt x max(b / link, b / remote bandwidth, b / bandwidth of all Redis
//                     nodes, r / decode) for a prompt that is only remote, as outcome.h for others.
//                     The remote bandwidth is that of a node with the remote store, and the link's
//                     where it is not given.
//   cost              nodes x price of their tiers + Redis nodes x memory x price; for a hit a
//                     second: over the blocks that hit, / s
//
// `loads` such loads, with prompts of their own, scale: one is replayed, and counts are multiplied.
// By affinity, nodes / loads nodes serve a load. At random every node serves all loads, and a load
// has a share of the node's memory; no figure comes of a share below kLeastPrompts prompts, or of
// more than kMostNodes nodes. All figures are means over the load: a peak needs more. Redis nodes
// are masters: replicas come on top. There are no queues and no round trips in the times.
//
// Zero means unknown, as in Hardware. Values and free functions; thread-safe.
#ifndef KVSTOW_CLIENT_PLANNER_FLEET_PLAN_H_
#define KVSTOW_CLIENT_PLANNER_FLEET_PLAN_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "client/planner/outcome.h"
#include "storage/trace/fleet.h"

namespace kvstow::planner {

// A Redis process, which one core drives, and its machine's memory for it.
struct RedisNode {
  uint64_t memory_bytes = uint64_t{16} << 30;
  double fill = 0.75;  // of the memory, that pages may take
  double bytes_per_s = 1.5e9;
  double commands_per_s = 80'000;
};

struct Fleet {
  static constexpr uint64_t kEndless = UINT64_MAX;
  static constexpr uint32_t kMostNodes = 1024;  // that are replayed
  static constexpr uint64_t kLeastPrompts = 10;

  uint32_t nodes = 0;
  Routing routing = Routing::kAffinity;
  uint32_t loads = 1;             // such loads at once; divides `nodes`
  uint64_t remote_bytes = 0;      // 0 = none
  double remote_bytes_per_s = 0;  // of a node with the remote store
  double remote_price_per_gib = 0;
  uint32_t values = 1;  // of a page in the remote store, beside its record
  RedisNode redis;
};

struct FleetOutcome {
  double local_rate = 0, remote_rate = 0, miss_rate = 0;
  double pooled_rate = 0;             // of one node with the memory of all, without a remote store
  double affinity_rate = 0;           // local, by either routing
  std::optional<double> random_rate;  // nothing where it cannot be told
  double busiest_node = 1;            // its blocks, where 1 is the mean
  uint64_t remote_pages = 0;
  double remote_bytes = 0;                                                   // of those pages
  double read_bytes_per_s = 0, written_bytes_per_s = 0, commands_per_s = 0;  // of the remote store
  uint64_t redis_for_memory = 0, redis_for_bytes = 0, redis_for_commands = 0;
  uint64_t redis_for_all = 0;  // to hold all of Fleet::remote_bytes; 0 when that is endless
  uint64_t redis_nodes() const;
  double node_remote_bytes_per_s = 0, node_worker_bytes_per_s = 0;
  bool remote_overloaded =
      false;  // a node's share is more than its bandwidth with the remote store
  // Time to first token of a prompt that is all in the fastest tier of its node, and only remote.
  std::optional<double> local_s, remote_s;
  std::optional<double> cost, cost_per_hit;
};

// Fails with INVALID_ARGUMENT, which names the flag of `kvstow plan`.
absl::StatusOr<FleetOutcome> PredictFleet(const Trace& trace, const Load& load,
                                          uint64_t raw_bytes_per_token, const RecipeSize& recipe,
                                          const Hardware& hardware, const Fleet& fleet);

}  // namespace kvstow::planner

#endif  // KVSTOW_CLIENT_PLANNER_FLEET_PLAN_H_
