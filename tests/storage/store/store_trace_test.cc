// The store and the simulator agree: a trace driven through TieredStore, as a server would be, hits
// as often as the simulator says, for every policy, with whole pages and with levels.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/device/device.h"
#include "storage/store/tiered_store.h"
#include "storage/tiers/memory_tier.h"
#include "storage/trace/simulator.h"
#include "tests/storage/prf_page.h"
#include "tests/storage/status_matchers.h"

namespace kvstow {
namespace {

using Levels = std::span<const SimulatedLevel>;
constexpr SimulatedLevel kWhole[] = {{8, 1}};
constexpr SimulatedLevel kLevels[] = {{2, 0.88}, {2, 0.115}, {4, 0.005}};

// A page for each block; its bodies are a few bytes.
class Pages {
 public:
  explicit Pages(Levels levels) {
    for (const SimulatedLevel& level : levels) {
      bodies_.push_back(SharedBytes::Take(std::string(level.bytes, 'x')));
      facts_.push_back({.bytes = static_cast<uint32_t>(level.bytes),
                        .gain = static_cast<float>(level.gain),
                        .digest = Xxh3(bodies_.back().span())});
    }
  }
  static std::string KeyOf(uint64_t block) { return absl::StrCat("block-", block); }
  PageToStore Page(const TraceRequest& request, size_t i) const {
    PageToStore page{.name = {.space = 1, .key = KeyOf(request.blocks[i])}};
    page.raw_bytes = 8;
    page.first_position = 512 * i;
    page.tokens = 512;
    if (i > 0) page.parent_key = KeyOf(request.blocks[i - 1]);
    page.facts = facts_;
    page.bodies = bodies_;
    return page;
  }

 private:
  std::vector<SharedBytes> bodies_;
  std::vector<SegmentFacts> facts_;
};

// What the clients of a server do: look the prompt up, read what is there, put the rest.
SimulationResult Replay(const Trace& trace, TieredStore& store, Levels levels) {
  const Pages pages(levels);
  SimulationResult result{.references = trace.references};
  for (const TraceRequest& request : trace.requests) {
    std::vector<std::string> keys;
    for (const uint64_t block : request.blocks) keys.push_back(Pages::KeyOf(block));
    const PrefixMatch match = store.residency().Lookup(1, Views(keys), true);
    result.hits += match.pages.size();
    for (size_t i = 0; i < match.pages.size(); ++i) {
      result.hit_bytes += static_cast<double>(match.pages[i].stored_bytes);
      const uint16_t base = 0;
      const auto body = store.Read({1, keys[i]}, match.pages[i].number, {&base, 1});
      EXPECT_OK(body[0].status());
    }
    store.residency().Release(match.lease);
    for (size_t i = match.pages.size(); i < request.blocks.size(); ++i) {
      EXPECT_OK(store.Put(pages.Page(request, i)).status());
    }
  }
  EXPECT_OK(store.residency().CheckInvariants());
  return result;
}

std::unique_ptr<TieredStore> Store(absl::string_view policy, uint64_t host_bytes) {
  static ManualClock clock;
  TieredStoreParts parts;
  parts.tiers[1] = MakeMemoryTier(HostDevice());
  auto store = TieredStore::Open({.budget_bytes = {0, host_bytes, 0},
                                  .high_watermark = 1,
                                  .low_watermark = 1,
                                  .eviction_policy = std::string(policy),
                                  .clock = &clock,
                                  .background = false},
                                 std::move(parts));
  EXPECT_OK(store.status());
  return *std::move(store);
}

const Trace& Excerpt() {
  static const Trace* const trace = [] {
    auto loaded = LoadTrace(KVSTOW_TESTS_DIR "/data/mooncake_conversation_1000.jsonl.gz");
    EXPECT_OK(loaded.status());
    return new Trace(*std::move(loaded));
  }();
  return *trace;
}

class StoreTraceTest : public testing::TestWithParam<PolicyInfo> {};

TEST_P(StoreTraceTest, HitsAsOftenAsTheSimulatorSays) {
  for (const uint64_t blocks : {300, 1000, 3000}) {
    for (const auto levels : {Levels(kWhole), Levels(kLevels)}) {
      const auto said = Simulate(Excerpt(), GetParam(), 8 * blocks, levels);
      const auto store = Store(GetParam().name, 8 * blocks);
      const auto measured = Replay(Excerpt(), *store, levels);
      EXPECT_NEAR(measured.hit_rate(), said.hit_rate(), 0.006)
          << blocks << " blocks of " << levels.size() << " levels";
      RecordProperty(absl::StrCat("hits_", blocks, "_", levels.size()),
                     absl::StrCat(measured.hit_rate(), " simulated ", said.hit_rate()));
      const auto mean = [](const SimulationResult& r) {
        return r.hits == 0 ? 0 : r.hit_bytes / static_cast<double>(r.hits);
      };
      if (said.hits > 500) {
        EXPECT_NEAR(mean(measured), mean(said), 0.5);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, StoreTraceTest, testing::ValuesIn(EvictionPolicies()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(StoreLevelsTest, LevelsThatMayGoOneByOneHitMoreThanWholePages) {
  constexpr uint64_t kBytes = 8 * 1000;
  const double whole = Replay(Excerpt(), *Store("kvstow", kBytes), kWhole).hit_rate();
  const double levels = Replay(Excerpt(), *Store("kvstow", kBytes), kLevels).hit_rate();
  EXPECT_GE(levels, 1.3 * whole);
  EXPECT_GE(whole, 1.05 * Replay(Excerpt(), *Store("lru", kBytes), kWhole).hit_rate());
}

}  // namespace
}  // namespace kvstow
