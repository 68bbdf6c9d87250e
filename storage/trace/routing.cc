#include "storage/trace/routing.h"

#include <algorithm>
#include <random>

namespace kvstow {
namespace {

// SplitMix64's finalizer: every bit of the input moves half of the bits of the result.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

const char* RoutingName(Routing routing) {
  return routing == Routing::kAffinity ? "affinity" : "random";
}

std::vector<uint64_t> AffinityKeys(const Trace& trace) {
  std::vector<uint64_t> requests_with(trace.parents.size());
  for (const TraceRequest& request : trace.requests) {
    for (const uint64_t block : request.blocks) ++requests_with[block];
  }
  const uint64_t common =
      std::max<uint64_t>(kCommonAtLeast, trace.requests.size() / kCommonShareDivisor);
  std::vector<uint64_t> keys;
  keys.reserve(trace.requests.size());
  for (const TraceRequest& request : trace.requests) {
    if (request.session != TraceRequest::kNoSession) {
      keys.push_back(static_cast<uint64_t>(request.session));
      continue;
    }
    uint64_t key = 0;
    for (const uint64_t block : request.blocks) {
      key = block;
      if (requests_with[block] <= common) break;
    }
    keys.push_back(key);
  }
  return keys;
}

uint32_t NodeOf(uint64_t key, uint32_t nodes) {
  uint32_t best = 0;
  uint64_t largest = 0;
  const uint64_t mixed = Mix(key);
  for (uint32_t node = 0; node < nodes; ++node) {
    const uint64_t hash = Mix(mixed ^ Mix(~uint64_t{node}));
    if (node > 0 && hash <= largest) continue;
    largest = hash;
    best = node;
  }
  return best;
}

std::vector<uint32_t> NodesOf(const Trace& trace, Routing routing, uint32_t nodes, uint64_t seed) {
  std::vector<uint32_t> out;
  out.reserve(trace.requests.size());
  if (routing == Routing::kAffinity) {
    for (const uint64_t key : AffinityKeys(trace)) out.push_back(NodeOf(key, nodes));
    return out;
  }
  // Not std::uniform_int_distribution, whose numbers differ between libraries.
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    out.push_back(static_cast<uint32_t>((random() >> 32) * nodes >> 32));
  }
  return out;
}

}  // namespace kvstow
