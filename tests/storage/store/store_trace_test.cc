// The store and the simulator agree: a trace driven through TieredStore, as a server would be, hits
// as often as the simulator says, for every policy, with whole pages and with levels.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/device/device.h"
#include "storage/store/tiered_store.h"
#include "storage/tiers/memory_tier.h"
#include "storage/trace/simulator.h"
#include "tests/paths.h"
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
  explicit Pages(Levels levels, SpaceId space = 1) : space_(space) {
    for (const SimulatedLevel& level : levels) {
      bodies_.push_back(SharedBytes::Take(std::string(level.bytes, 'x')));
      facts_.push_back({.bytes = static_cast<uint32_t>(level.bytes),
                        .gain = static_cast<float>(level.gain),
                        .digest = Xxh3(bodies_.back().span())});
    }
  }
  SpaceId space() const { return space_; }
  static std::string KeyOf(uint64_t block) { return absl::StrCat("block-", block); }
  PageToStore Page(const TraceRequest& request, size_t i) const {
    PageToStore page{.name = {.space = space_, .key = KeyOf(request.blocks[i])}};
    page.raw_bytes = 8;
    page.first_position = 512 * i;
    page.tokens = 512;
    if (i > 0) page.parent_key = KeyOf(request.blocks[i - 1]);
    page.facts = facts_;
    page.bodies = bodies_;
    return page;
  }

 private:
  const SpaceId space_;
  std::vector<SharedBytes> bodies_;
  std::vector<SegmentFacts> facts_;
};

// What a client of a server does: it looks the prompt up, reads what is there, puts the rest.
void Serve(const TraceRequest& request, TieredStore& store, const Pages& pages,
           SimulationResult& result) {
  std::vector<std::string> keys;
  for (const uint64_t block : request.blocks) keys.push_back(Pages::KeyOf(block));
  const PrefixMatch match = store.residency().Lookup(pages.space(), Views(keys), true);
  result.hits += match.pages.size();
  for (size_t i = 0; i < match.pages.size(); ++i) {
    result.hit_bytes += static_cast<double>(match.pages[i].stored_bytes);
    const uint16_t base = 0;
    const auto body = store.Read({pages.space(), keys[i]}, match.pages[i].number, {&base, 1});
    EXPECT_OK(body[0].status());
  }
  store.residency().Release(match.lease);
  for (size_t i = match.pages.size(); i < request.blocks.size(); ++i) {
    EXPECT_OK(store.Put(pages.Page(request, i)).status());
  }
}

SimulationResult Replay(const Trace& trace, TieredStore& store, Levels levels) {
  const Pages pages(levels);
  SimulationResult result{.references = trace.references};
  for (const TraceRequest& request : trace.requests) Serve(request, store, pages, result);
  EXPECT_OK(store.residency().CheckInvariants());
  return result;
}

// Space N belongs to tenant N.
std::unique_ptr<TieredStore> Store(absl::string_view policy, uint64_t host_bytes) {
  static ManualClock clock;
  TieredStoreParts parts;
  parts.tiers[1] = MakeMemoryTier(HostDevice());
  auto store = TieredStore::Open({.budget_bytes = {0, host_bytes, 0},
                                  .high_watermark = 1,
                                  .low_watermark = 1,
                                  .eviction_policy = std::string(policy),
                                  .clock = &clock,
                                  .tenant_of = [](const std::string& name) -> TenantId {
                                    return name.empty() ? 0 : name[0] - '0';
                                  },
                                  .background = false},
                                 std::move(parts));
  EXPECT_OK(store.status());
  return *std::move(store);
}

const Trace& Excerpt() {
  static const Trace* const trace = [] {
    auto loaded = LoadTrace(TestsPath("data/mooncake_conversation_1000.jsonl.gz"));
    EXPECT_OK(loaded.status());
    return new Trace(*std::move(loaded));
  }();
  return *trace;
}

// A tenant replays a public trace. A neighbour replays it under keys of its own, ten requests for
// each of the tenant's. The tenant hits nearly as often as in a store of its own that has no more
// than its guarantee, and never holds less than that.
TEST(TenantTraceTest, AFloodLeavesTheGuaranteeWhole) {
  constexpr uint64_t kBudget = 8 * 3000, kGuarantee = 8 * 1000;
  const auto shared = Store("kvstow", kBudget), alone = Store("kvstow", kGuarantee);
  for (const TenantId tenant : {1u, 2u}) {
    ASSERT_OK(shared->SaveSpace({.id = tenant, .bytes = {}, .tenant = std::to_string(tenant)}));
  }
  ASSERT_OK(alone->SaveSpace({.id = 1, .bytes = {}}));
  const std::pair<TenantId, TenantShare> share[] = {{1, {.guarantee = {0, kGuarantee, 0}}}};
  shared->cooling().SetShares(share);
  const Pages quiet(kWhole, 1), loud(kWhole, 2);
  SimulationResult with_neighbour, without, of_neighbour;
  uint64_t held = 0;
  size_t next = 0;
  const auto& requests = Excerpt().requests;
  for (const TraceRequest& request : requests) {
    Serve(request, *alone, quiet, without);
    Serve(request, *shared, quiet, with_neighbour);
    held = shared->residency().UsageByTenant()[1].encoded_bytes;
    for (int i = 0; i < 10; ++i) {
      Serve(requests[next++ % requests.size()], *shared, loud, of_neighbour);
    }
    const uint64_t left = shared->residency().UsageByTenant()[1].encoded_bytes;
    ASSERT_GE(left, std::min(held, kGuarantee));
  }
  EXPECT_OK(shared->residency().CheckInvariants());
  EXPECT_GT(without.hits, 500u);
  EXPECT_GT(with_neighbour.hits, 0.98 * static_cast<double>(without.hits));
  EXPECT_GE(held, kGuarantee - 8);
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
