// Several nodes over one remote store: counts by hand, and what must hold on any trace.
#include "storage/trace/fleet.h"

#include <gtest/gtest.h>

#include <random>

#include "storage/trace/simulator.h"
#include "tests/paths.h"

namespace kvstow {
namespace {

constexpr SimulatedLevel kWhole{.bytes = kSimulatedBlockBytes};
constexpr uint64_t kEndless = uint64_t{1} << 50;

const PolicyInfo& Lru() { return **FindEvictionPolicy("lru"); }

// Adds a prompt that goes on with the blocks of `history`, and has `fresh` more.
void AddPrompt(Trace& trace, std::vector<uint64_t>& history, uint64_t fresh, int64_t session) {
  for (uint64_t i = 0; i < fresh; ++i) {
    trace.parents.push_back(history.empty() ? Trace::kNoParent
                                            : static_cast<uint32_t>(history.back()));
    history.push_back(trace.parents.size() - 1);
  }
  trace.requests.push_back({.time_s = static_cast<double>(trace.requests.size()),
                            .blocks = history,
                            .session = session});
  trace.references += history.size();
}

// Conversations that take turns at random. All begin with the same block.
Trace Conversations(bool named) {
  Trace trace{.block_tokens = 16};
  trace.parents.push_back(Trace::kNoParent);
  std::mt19937_64 random(7);
  std::vector<std::vector<uint64_t>> history(200, {0});
  for (int i = 0; i < 3000; ++i) {
    const uint64_t session = random() % history.size();
    if (history[session].size() > 40) history[session] = {0};
    AddPrompt(trace, history[session], 1 + random() % 4,
              named ? static_cast<int64_t>(session) : TraceRequest::kNoSession);
  }
  return trace;
}

Trace Excerpt() { return *LoadTrace(TestsPath("data/mooncake_conversation_1000.jsonl.gz")); }

std::vector<Trace> AllTraces() { return {Conversations(true), Conversations(false), Excerpt()}; }

TEST(FleetTest, CountsByHand) {
  Trace trace{.block_tokens = 16};
  std::vector<uint64_t> a, b;
  AddPrompt(trace, a, 3, 1);  // 3 new
  AddPrompt(trace, b, 2, 2);  // 2 new: they push two of the others out
  AddPrompt(trace, a, 1, 1);  // 0 and 1 are gone: 3 remote, 1 new
  const FleetOptions options{.nodes = 1, .node_blocks = 3, .remote_blocks = kEndless};
  const FleetResult result = SimulateFleet(trace, Lru(), options);
  EXPECT_EQ(result.requests, 3u);
  EXPECT_EQ(result.references, 9u);
  EXPECT_EQ(result.local_hits, 0u);
  EXPECT_EQ(result.remote_hits, 3u);
  EXPECT_EQ(result.misses, 6u);
  EXPECT_EQ(result.asked, 9u);
  EXPECT_EQ(result.offered, 6u);
  EXPECT_EQ(result.sent, 6u);
  EXPECT_EQ(result.most_remote_blocks, 6u);
  EXPECT_EQ(result.remote_evictions, 0u);
  EXPECT_EQ(result.hottest_fetches, 1u);
  EXPECT_EQ(result.busiest_references, 9u);
  EXPECT_EQ(result.Commands(1), 9u + 3 + 6 + 2 * 6);
  EXPECT_EQ(result.Commands(3), 9u + 3 * 3 + 6 + 4 * 6);
}

TEST(FleetTest, AFullRemoteStoreForgetsWhatWasUsedLeastRecently) {
  Trace trace{.block_tokens = 16};
  std::vector<uint64_t> a, b, c;
  AddPrompt(trace, a, 1, 1);
  AddPrompt(trace, b, 1, 2);
  AddPrompt(trace, a, 0, 1);  // the remote store has it, and it is the younger one now
  AddPrompt(trace, c, 1, 3);  // pushes b out
  AddPrompt(trace, b, 0, 2);
  AddPrompt(trace, a, 0, 1);  // b pushed it out in turn, or c
  const FleetOptions options{.nodes = 1, .node_blocks = 1, .remote_blocks = 2};
  const FleetResult result = SimulateFleet(trace, Lru(), options);
  EXPECT_EQ(result.remote_hits, 1u);
  EXPECT_EQ(result.sent, 5u);
  EXPECT_EQ(result.remote_evictions, 3u);
  EXPECT_EQ(result.most_remote_blocks, 2u);
}

TEST(FleetTest, OneNodeAloneIsTheSimulator) {
  for (const Trace& trace : AllTraces()) {
    for (const PolicyInfo& policy : EvictionPolicies()) {
      for (const uint64_t blocks : {1, 50, 1000, 1 << 20}) {
        const auto one = Simulate(trace, policy, blocks * kSimulatedBlockBytes, {&kWhole, 1});
        for (const Routing routing : {Routing::kAffinity, Routing::kRandom}) {
          const FleetResult fleet =
              SimulateFleet(trace, policy, {.routing = routing, .node_blocks = blocks});
          EXPECT_EQ(fleet.local_hits, one.hits) << policy.name << " " << blocks;
          EXPECT_EQ(fleet.remote_hits + fleet.asked + fleet.offered + fleet.sent, 0u);
        }
        EXPECT_EQ(PooledHitRate(trace, policy, 1, blocks), one.hit_rate());
      }
    }
  }
}

TEST(FleetTest, AnEndlessRemoteStoreMakesOneEndlessCacheOfAllNodes) {
  for (const Trace& trace : AllTraces()) {
    for (const uint32_t nodes : {1, 2, 7, 32}) {
      for (const Routing routing : {Routing::kAffinity, Routing::kRandom}) {
        for (const uint64_t blocks : {1, 60, 2000}) {
          const FleetResult fleet = SimulateFleet(trace, EvictionPolicies()[0],
                                                  {.nodes = nodes,
                                                   .routing = routing,
                                                   .node_blocks = blocks,
                                                   .remote_blocks = kEndless});
          EXPECT_DOUBLE_EQ(fleet.Share(fleet.local_hits + fleet.remote_hits),
                           InfiniteHitRate(trace));
          EXPECT_EQ(fleet.sent, trace.parents.size()) << "each block once";
          EXPECT_EQ(fleet.most_remote_blocks, trace.parents.size());
        }
      }
    }
  }
}

TEST(FleetTest, CountsAddUpAndRepeat) {
  for (const Trace& trace : AllTraces()) {
    for (const Routing routing : {Routing::kAffinity, Routing::kRandom}) {
      for (const uint64_t remote : {0, 1, 300, 4000}) {
        const FleetOptions options{
            .nodes = 5, .routing = routing, .seed = 3, .node_blocks = 100, .remote_blocks = remote};
        const FleetResult one = SimulateFleet(trace, Lru(), options);
        EXPECT_EQ(one.requests, trace.requests.size());
        EXPECT_EQ(one.references, trace.references);
        EXPECT_EQ(one.local_hits + one.remote_hits + one.misses, one.references);
        EXPECT_LE(one.most_remote_blocks, remote);
        EXPECT_LE(one.sent, one.offered);
        EXPECT_EQ(one.remote_hits > 0, remote > 1) << remote;
        const FleetResult two = SimulateFleet(trace, Lru(), options);
        EXPECT_EQ(one.local_hits, two.local_hits);
        EXPECT_EQ(one.remote_hits, two.remote_hits);
        EXPECT_EQ(one.sent, two.sent);
      }
    }
  }
}

TEST(FleetTest, AffinityHitsMoreOfItsOwnThanChance) {
  for (const Trace& trace : AllTraces()) {
    for (const uint32_t nodes : {2, 8}) {
      for (const uint64_t blocks : {300, 2000}) {
        FleetOptions options{.nodes = nodes, .node_blocks = blocks, .remote_blocks = kEndless};
        const FleetResult affinity = SimulateFleet(trace, Lru(), options);
        options.routing = Routing::kRandom;
        const FleetResult random = SimulateFleet(trace, Lru(), options);
        EXPECT_GE(affinity.local_hits, random.local_hits) << nodes << " " << blocks;
        EXPECT_LE(affinity.remote_hits, random.remote_hits);
        if (blocks < 2000) continue;  // too little for more than the common page
        EXPECT_GT(affinity.local_hits, random.local_hits) << nodes;
      }
    }
  }
}

TEST(FleetTest, MoreOfTheRemoteStoreHitsMore) {
  for (const Trace& trace : AllTraces()) {
    uint64_t last = 0;
    for (const uint64_t remote : {1, 1000, 4000, 1 << 20}) {
      const FleetResult fleet =
          SimulateFleet(trace, Lru(), {.nodes = 4, .node_blocks = 100, .remote_blocks = remote});
      EXPECT_GE(fleet.local_hits + fleet.remote_hits, last) << remote;
      last = fleet.local_hits + fleet.remote_hits;
    }
  }
}

TEST(FleetTest, ANodeThatMaySendLittleSendsTheNewestPromptAndWhatIsUsedAgain) {
  Trace trace{.block_tokens = 16};
  std::vector<uint64_t> a, b, c;
  AddPrompt(trace, a, 2, 1);  // blocks 0 and 1, at 0 s
  AddPrompt(trace, b, 2, 2);  // blocks 2 and 3, at 1 s, when block 0 goes
  AddPrompt(trace, b, 0, 2);  // at 2 s, when block 2 goes: 3 is used again
  AddPrompt(trace, c, 2, 3);  // at 3 s, when 3 goes
  AddPrompt(trace, a, 0, 1);  // at 4 s, when 4 goes
  const FleetOptions all{.node_blocks = 100, .remote_blocks = kEndless, .sent_per_second = 1};
  const FleetResult result = SimulateFleet(trace, Lru(), all);
  EXPECT_EQ(result.offered, 6u);
  EXPECT_EQ(result.sent, 4u);
  EXPECT_EQ(result.unsent, 2u) << "1, which was used at the end, and 5";
  FleetOptions tiny = all;
  tiny.node_blocks = 2;  // each prompt pushes out the one before
  const FleetResult late = SimulateFleet(trace, Lru(), tiny);
  EXPECT_EQ(late.remote_hits, 1u) << "block 0 was sent before it went";
  EXPECT_EQ(late.unsent, 2u) << "1, which was offered twice, and 5";
}

TEST(FleetTest, MoreBandwidthHitsMoreUpToThatOfNoLimit) {
  const Trace trace = Excerpt();
  FleetOptions options{
      .nodes = 4, .routing = Routing::kRandom, .node_blocks = 1000, .remote_blocks = kEndless};
  const uint64_t without = SimulateFleet(trace, Lru(), options).remote_hits;
  uint64_t last = 0;
  for (const double rate : {1., 3., 10., 1e6}) {
    options.sent_per_second = rate;
    const uint64_t hits = SimulateFleet(trace, Lru(), options).remote_hits;
    EXPECT_GT(hits, last) << rate;
    last = hits;
  }
  EXPECT_LE(last, without);
  EXPECT_GT(last, without * 98 / 100);
}

TEST(RoutingTest, SessionsStayTogetherAndCommonPagesDoNotCount) {
  for (const bool named : {true, false}) {
    const Trace trace = Conversations(named);
    for (const uint32_t nodes : {1, 4, 16}) {
      const auto where = NodesOf(trace, Routing::kAffinity, nodes, 1);
      std::vector<size_t> of_block(trace.parents.size(), SIZE_MAX), load(nodes);
      for (size_t i = 0; i < where.size(); ++i) {
        ++load[where[i]];
        size_t& node = of_block[trace.requests[i].blocks[1]];
        EXPECT_TRUE(node == SIZE_MAX || node == where[i]) << "the block after the common one";
        node = where[i];
      }
      for (const size_t requests : load) {
        EXPECT_GT(requests, 0.2 * 3000 / nodes);
        EXPECT_LT(requests, 2.5 * 3000 / nodes);
      }
    }
  }
}

TEST(RoutingTest, ANodeMoreMovesItsShareOnly) {
  int moved = 0;
  for (uint64_t key = 0; key < 10'000; ++key) {
    const uint32_t before = NodeOf(key, 9), after = NodeOf(key, 10);
    EXPECT_TRUE(after == before || after == 9);
    moved += after == 9 ? 1 : 0;
  }
  EXPECT_NEAR(moved, 1000, 150);
}

TEST(RoutingTest, ChanceIsEvenAndFollowsTheSeed) {
  const Trace trace = Conversations(true);
  const auto one = NodesOf(trace, Routing::kRandom, 6, 1);
  EXPECT_EQ(one, NodesOf(trace, Routing::kRandom, 6, 1));
  EXPECT_NE(one, NodesOf(trace, Routing::kRandom, 6, 2));
  for (uint32_t node = 0; node < 6; ++node) {
    EXPECT_NEAR(static_cast<double>(std::ranges::count(one, node)), 500, 100);
  }
  EXPECT_STREQ(RoutingName(Routing::kRandom), "random");
  EXPECT_STREQ(RoutingName(Routing::kAffinity), "affinity");
}

}  // namespace
}  // namespace kvstow
