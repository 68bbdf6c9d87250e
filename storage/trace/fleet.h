// Replays a trace against several nodes that share a remote store.
//
// Each node has a cache of its own, as the one of simulator.h. A request goes to one node
// (routing.h). What happens there is what kvstowd does (service/remote/remote_tier.h):
//
//   1. The leading blocks that the node has are local hits.
//   2. The node asks the remote store for all others. The leading ones of them that it has are
//      remote hits, and are fetched.
//   3. The node touches or inserts all blocks of the prompt, in order. Those that it had not, and
//      did not fetch, are new to it: it asks whether the remote store has each, and sends it if
//      not. Where nodes may send so many blocks a second only, the others wait in a SendQueue; a
//      block that leaves its node meanwhile is not sent.
//
// The remote store keeps each block once, and evicts the one that was sent or fetched least
// recently. Local hits do not touch it there.
//
// Servers are less simple: without that rate, a block here is sent before the next request. No
// fetch is late, nothing expires, and no node believes an earlier answer (RemoteRecords does, for
// seconds). So there are no more commands than these.
//
// One node without a remote store is Simulate with one level. With a remote store that holds
// everything, local and remote hits together are InfiniteHitRate, wherever requests go.
//
// Deterministic for a seed. It takes two bytes for each node and distinct block.
#ifndef KVSTOW_STORAGE_TRACE_FLEET_H_
#define KVSTOW_STORAGE_TRACE_FLEET_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "storage/policies/eviction_policy.h"
#include "storage/trace/routing.h"
#include "storage/trace/trace_reader.h"

namespace kvstow {

// Bytes of a simulated block, for policies: only relative sizes count.
inline constexpr uint64_t kSimulatedBlockBytes = 1 << 16;

struct FleetOptions {
  uint32_t nodes = 1;
  Routing routing = Routing::kAffinity;
  uint64_t seed = 1;           // of random routing
  uint64_t node_blocks = 0;    // that each node holds
  uint64_t remote_blocks = 0;  // that the remote store holds; 0 = there is none
  double sent_per_second = 0;  // blocks that each node may send there; 0 = as they come
};

// Counts blocks, unless it says otherwise.
struct FleetResult {
  uint64_t requests = 0, references = 0;
  uint64_t local_hits = 0, remote_hits = 0, misses = 0;  // they add up to references
  uint64_t asked = 0;                                    // of the remote store, by look-ups
  uint64_t offered = 0, sent = 0;   // new to a node; of them, sent to the remote store
  uint64_t unsent = 0;              // left their node, or found the trace at its end
  uint64_t remote_evictions = 0;    // from the remote store
  uint64_t most_remote_blocks = 0;  // that the remote store held at one time
  uint64_t hottest_fetches = 0;     // of the block that was fetched most often
  uint64_t busiest_references = 0;  // of the node that got most
  double local_rate() const { return Share(local_hits); }
  double remote_rate() const { return Share(remote_hits); }
  double miss_rate() const { return Share(misses); }
  double Share(uint64_t blocks) const {
    return references == 0 ? 0 : static_cast<double>(blocks) / static_cast<double>(references);
  }
  // Returns the commands that the remote store executes when a page is a record and `values`
  // more: one for each name that is read, written, or asked for.
  uint64_t Commands(uint32_t values) const {
    return asked + remote_hits * values + offered + sent * (uint64_t{values} + 1);
  }
};

// Calls `step` after every request.
FleetResult SimulateFleet(
    const Trace& trace, const PolicyInfo& policy, const FleetOptions& options,
    absl::FunctionRef<void()> step = [] {});

// Returns the hit rate of one node that has the memory of all, without a remote store.
double PooledHitRate(
    const Trace& trace, const PolicyInfo& policy, uint32_t nodes, uint64_t node_blocks,
    absl::FunctionRef<void()> step = [] {});

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_TRACE_FLEET_H_
