// kvstow simulate --nodes: a trace over several nodes that share a remote store.
#ifndef KVSTOW_CLIENT_CLI_PLAN_SIMULATE_NODES_H_
#define KVSTOW_CLIENT_CLI_PLAN_SIMULATE_NODES_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client/cli/cli.h"
#include "storage/trace/fleet.h"

namespace kvstow::cli {

struct NodesFlags {
  std::vector<uint32_t> counts;  // of nodes; none: the verb does without them
  std::string routing = "affinity";
  std::string policy = "kvstow";
  uint64_t remote_bytes = 0;    // UINT64_MAX = endless
  uint32_t values = 1;          // of a page, beside its record
  double send_bytes_per_s = 0;  // that each node may send there; 0 = as they come
  uint64_t seed = 1;
  bool on() const { return !counts.empty(); }
};

// The nodes of a simulation have no levels.
void AddNodesFlags(const Verb& verb, NodesFlags& flags, const Flag& levels);

// Simulates each capacity of a node with each number of nodes. Returns the exit code.
int SimulateNodes(const OutputFlags& output, const NodesFlags& flags, const std::string& name,
                  const Trace& trace, std::span<const uint64_t> capacities, double bytes_per_token);

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_PLAN_SIMULATE_NODES_H_
