// The simulator: counts by hand on small traces; policies on synthetic ones and on a public
// excerpt.
#include "storage/trace/simulator.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/paths.h"

namespace kvstow {
namespace {

constexpr SimulatedLevel kWhole;

// Prompts of blocks; block b of a prompt is a child of the one before it.
Trace TraceOf(const std::vector<std::vector<uint64_t>>& prompts, size_t blocks) {
  Trace trace{.block_tokens = 512};
  trace.parents.assign(blocks, Trace::kNoParent);
  for (const auto& prompt : prompts) {
    trace.requests.push_back({.blocks = prompt});
    trace.references += prompt.size();
    for (size_t b = 1; b < prompt.size(); ++b) {
      trace.parents[prompt[b]] = static_cast<uint32_t>(prompt[b - 1]);
    }
  }
  return trace;
}

double HitRate(const Trace& trace, absl::string_view policy, uint64_t capacity) {
  return Simulate(trace, **FindEvictionPolicy(policy), capacity, {&kWhole, 1}).hit_rate();
}
double BestPeer(const Trace& trace, uint64_t capacity) {
  double best = 0;
  for (const char* peer : {"lru", "slru", "arc", "s3fifo", "wtinylfu"}) {
    best = std::max(best, HitRate(trace, peer, capacity));
  }
  return best;
}

TEST(SimulatorTest, HitsAreLeadingBlocksThatArePresent) {
  const Trace trace = TraceOf({{0, 1, 2}, {0, 1, 3}, {4}, {0, 1, 2}}, 5);
  // LRU of 3: [0 1 2], then 2 goes for 3, 0 for 4 (0 is older than 1, 3): nothing leads in the
  // last.
  const auto lru = Simulate(trace, **FindEvictionPolicy("lru"), 3, {&kWhole, 1});
  EXPECT_EQ(lru.references, 10u);
  EXPECT_EQ(lru.hits, 2u);
  EXPECT_EQ(Simulate(trace, **FindEvictionPolicy("lru"), 5, {&kWhole, 1}).hits, 5u);
  EXPECT_EQ(SimulateBelady(trace, 3).hits, 5u);
  EXPECT_EQ(SimulateBelady(trace, 1).hits, 2u);
  EXPECT_EQ(InfiniteHitRate(trace), 0.5);
}

TEST(SimulatorTest, PagesLoseLevelsBeforeTheyGo) {
  const std::vector<SimulatedLevel> levels = {{2, 0.9}, {2, 0.09}, {4, 0.01}};
  // Room for one whole page; as bases, for four.
  const Trace trace = TraceOf({{0}, {1}, {2}, {3}, {0}, {1}, {2}, {3}}, 4);
  const auto result = Simulate(trace, **FindEvictionPolicy("kvstow"), 8, levels);
  EXPECT_EQ(result.hits, 4u);
  EXPECT_EQ(result.evictions, 8u);
  EXPECT_EQ(result.hit_bytes, 8);
  EXPECT_NEAR(result.hit_error, 0.4, 1e-12);
  EXPECT_EQ(Simulate(trace, **FindEvictionPolicy("kvstow"), 32, levels).hit_error, 0);
}

TEST(SimulatorTest, BeladyBoundsEveryPolicyOnAPublicExcerpt) {
  const auto trace = LoadTrace(TestsPath("data/mooncake_conversation_1000.jsonl.gz"));
  ASSERT_TRUE(trace.ok()) << trace.status();
  for (const uint64_t capacity : {200, 1000, 5000}) {
    const double bound = SimulateBelady(*trace, capacity).hit_rate();
    EXPECT_LE(bound, InfiniteHitRate(*trace));
    for (const PolicyInfo& policy : EvictionPolicies()) {
      EXPECT_LE(HitRate(*trace, policy.name, capacity), bound) << policy.name;
    }
    EXPECT_GE(HitRate(*trace, "kvstow", capacity), HitRate(*trace, "lru", capacity));
  }
  EXPECT_EQ(HitRate(*trace, "kvstow", 1 << 20), InfiniteHitRate(*trace));
}

// Prompts that come again and again in turn, a little more of them than fit: LRU hits nothing.
TEST(SimulatorTest, LoopsAreHeldInPart) {
  std::vector<std::vector<uint64_t>> prompts;
  for (int round = 0; round < 60; ++round) {
    for (uint64_t p = 0; p < 30; ++p) prompts.push_back({4 * p, 4 * p + 1, 4 * p + 2, 4 * p + 3});
  }
  const Trace trace = TraceOf(prompts, 120);
  EXPECT_EQ(HitRate(trace, "lru", 100), 0);
  EXPECT_GT(HitRate(trace, "kvstow", 100), 0.6);
}

// A tenth of the requests go to hot prompts, the rest are new ones.
TEST(SimulatorTest, ScansDoNotWashOutWhatIsHot) {
  std::mt19937_64 random(1);
  std::vector<std::vector<uint64_t>> prompts;
  uint64_t fresh = 100;
  for (int i = 0; i < 20'000; ++i) {
    if (random() % 4 == 0) {
      const uint64_t p = random() % 20 * 2;
      prompts.push_back({p, p + 1});
    } else {
      prompts.push_back({fresh, fresh + 1});
      fresh += 2;
    }
  }
  const Trace trace = TraceOf(prompts, fresh);
  EXPECT_GT(HitRate(trace, "kvstow", 60), 1.3 * HitRate(trace, "lru", 60));
  EXPECT_GT(HitRate(trace, "kvstow", 60), 0.95 * BestPeer(trace, 60));
}

// Other pages become hot: lessons of the first half are no burden in the second.
TEST(SimulatorTest, AShiftIsFollowed) {
  std::mt19937_64 random(2);
  std::vector<std::vector<uint64_t>> prompts;
  for (int i = 0; i < 40'000; ++i) {
    const uint64_t base = static_cast<uint64_t>(i / 10'000) * 1000;
    // Zipf-like: the smaller the number, the hotter.
    const double u = static_cast<double>(random() % 1'000'000 + 1) / 1e6;
    prompts.push_back({base + static_cast<uint64_t>(999 * u * u * u)});
  }
  const Trace trace = TraceOf(prompts, 4000);
  EXPECT_GT(HitRate(trace, "kvstow", 100), 0.95 * HitRate(trace, "lru", 100));
  EXPECT_GT(HitRate(trace, "kvstow", 100), 0.9 * BestPeer(trace, 100));
}

}  // namespace
}  // namespace kvstow
