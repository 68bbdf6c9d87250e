// Chooses the node of each request of a trace, as a router in front of several servers does.
//
//   affinity  Requests of one session go to one node. So do prompts that begin alike, where the
//             trace names no sessions: they go by the first page that few requests share. A page
//             that many share, such as a system prompt, says nothing: every node soon has it.
//   random    Any node, request by request.
//
// Affinity is a rendezvous hash (Thaler and Ravishankar, 1998): of all nodes, the one with the
// largest hash of key and node. A node more takes over its share of keys, and no other key moves.
//
// Free functions; thread-safe. The same input gives the same nodes on every machine.
#ifndef KVSTOW_STORAGE_TRACE_ROUTING_H_
#define KVSTOW_STORAGE_TRACE_ROUTING_H_

#include <cstdint>
#include <vector>

#include "storage/trace/trace_reader.h"

namespace kvstow {

enum class Routing { kAffinity, kRandom };
const char* RoutingName(Routing routing);  // "affinity", "random"

// A page is common when more requests than these have it: 1 % of all, and 64 at least.
inline constexpr uint64_t kCommonShareDivisor = 100, kCommonAtLeast = 64;

// Returns what each request goes by: its session, or the first page of its prompt that is not
// common, or its last page when all are.
std::vector<uint64_t> AffinityKeys(const Trace& trace);

// Returns the node, from 0, of a key.
uint32_t NodeOf(uint64_t key, uint32_t nodes);

// Returns the node of each request. `seed` is that of random routing.
std::vector<uint32_t> NodesOf(const Trace& trace, Routing routing, uint32_t nodes, uint64_t seed);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_TRACE_ROUTING_H_
