// Several nodes over one remote store, against the formulas and the simulator.
#include "client/planner/fleet_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "client/planner/profile.h"

namespace kvstow::planner {
namespace {

using testing::HasSubstr;

constexpr uint64_t kRaw = 1 << 20;  // bytes of a token
constexpr uint64_t kGib = uint64_t{1} << 30;
constexpr uint64_t kBlock = 16 * kRaw / 2;
const RecipeSize kHalf = {.recipe = "half", .ratio = 2, .origin = Origin::kGiven};

const Trace& SomeTrace() {
  static const Trace trace =
      *TraceOfProfile("sessions=80,turns=6,shared=64,prompt=90,output=40,rate=2,think=9,block=16");
  return trace;
}

Hardware SomeHardware() {
  Hardware h;
  h.tiers[Hardware::kRam] = {.bytes = kGib, .bytes_per_s = 100e9, .price_per_gib = 4};
  h.prefill_tokens_per_s = 1000;
  h.link_bytes_per_s = 10e9;
  return h;
}
Fleet SomeFleet() {
  return {.nodes = 4, .remote_bytes = Fleet::kEndless, .remote_price_per_gib = 2, .values = 3};
}
FleetOutcome Predicted(const Fleet& fleet, const Hardware& hardware = SomeHardware()) {
  const auto outcome =
      PredictFleet(SomeTrace(), MeasureLoad(SomeTrace()), kRaw, kHalf, hardware, fleet);
  EXPECT_TRUE(outcome.ok()) << outcome.status();
  return outcome.value_or(FleetOutcome());
}

TEST(FleetPlan, OneNodeAloneIsTheCurve) {
  Fleet fleet{.nodes = 1};
  const Load load = MeasureLoad(SomeTrace());
  for (const uint64_t gib : {1, 3, 9}) {
    Hardware h = SomeHardware();
    h.tiers[Hardware::kRam].bytes = gib * kGib;
    const FleetOutcome o = Predicted(fleet, h);
    const Outcome one = Predict(load, kRaw, kHalf, h);
    EXPECT_DOUBLE_EQ(o.local_rate, one.hit_rate);
    EXPECT_DOUBLE_EQ(o.pooled_rate, one.hit_rate);
    EXPECT_DOUBLE_EQ(o.node_worker_bytes_per_s, one.link_bytes_per_s);
    EXPECT_DOUBLE_EQ(*o.local_s, *one.hit_s);
    EXPECT_DOUBLE_EQ(*o.cost, *one.cost);
    EXPECT_EQ(o.remote_rate + o.node_remote_bytes_per_s + o.commands_per_s, 0);
    EXPECT_EQ(o.redis_nodes(), 0u);
    EXPECT_FALSE(o.remote_s.has_value());
  }
}

TEST(FleetPlan, FollowsTheFormulas) {
  const Load load = MeasureLoad(SomeTrace());
  const Fleet fleet = SomeFleet();
  const FleetOutcome o = Predicted(fleet);
  const FleetResult r =
      SimulateFleet(SomeTrace(), **FindEvictionPolicy("lru"),
                    {.nodes = 4, .node_blocks = kGib / kBlock, .remote_blocks = UINT64_MAX});
  EXPECT_GT(r.remote_hits, 0u);
  EXPECT_DOUBLE_EQ(o.local_rate + o.remote_rate + o.miss_rate, 1);
  EXPECT_DOUBLE_EQ(o.local_rate + o.remote_rate, load.curve.InfiniteHitRate());
  EXPECT_DOUBLE_EQ(o.local_rate, r.local_rate());
  EXPECT_EQ(o.remote_pages, load.distinct_blocks);
  const double rate = static_cast<double>(kBlock) / load.span_s;
  EXPECT_DOUBLE_EQ(o.read_bytes_per_s, static_cast<double>(r.remote_hits) * rate);
  EXPECT_DOUBLE_EQ(o.written_bytes_per_s, static_cast<double>(r.sent) * rate);
  EXPECT_DOUBLE_EQ(o.commands_per_s, static_cast<double>(r.Commands(3)) / load.span_s);
  EXPECT_DOUBLE_EQ(o.node_remote_bytes_per_s, (o.read_bytes_per_s + o.written_bytes_per_s) / 4);
  EXPECT_EQ(o.redis_for_memory,
            std::ceil(static_cast<double>(o.remote_pages * kBlock) / (12.0 * kGib)));
  EXPECT_EQ(o.redis_for_bytes, 1u);
  EXPECT_EQ(o.redis_for_commands, 1u);
  EXPECT_EQ(o.redis_for_all, 0u) << "nothing holds endless bytes";
  const double cost = 4 * 4 + static_cast<double>(o.redis_nodes()) * 16 * 2;
  EXPECT_DOUBLE_EQ(*o.cost, cost);
  const double hits = (o.local_rate + o.remote_rate) * static_cast<double>(load.curve.references());
  EXPECT_DOUBLE_EQ(*o.cost_per_hit, cost / (hits / load.span_s));
}

TEST(FleetPlan, EachLimitOfARedisNodeCanDecide) {
  Fleet fleet = SomeFleet();
  const FleetOutcome wide = Predicted(fleet);
  EXPECT_EQ(wide.redis_nodes(), wide.redis_for_memory);
  fleet.redis = {.memory_bytes = 1024 * kGib, .bytes_per_s = wide.written_bytes_per_s / 10};
  EXPECT_GE(Predicted(fleet).redis_for_bytes, 10u);
  EXPECT_EQ(Predicted(fleet).redis_nodes(), Predicted(fleet).redis_for_bytes);
  fleet.redis = {.memory_bytes = 1024 * kGib, .commands_per_s = wide.commands_per_s / 6.5};
  EXPECT_EQ(Predicted(fleet).redis_nodes(), 7u);
  fleet.redis = {.memory_bytes = 1024 * kGib, .fill = 0.5};
  fleet.remote_bytes = 2048 * kGib;
  EXPECT_EQ(Predicted(fleet).redis_for_all, 4u);
}

TEST(FleetPlan, ARemotePrefixTakesTheSlowestOfItsWay) {
  const double tokens = MeasureLoad(SomeTrace()).prompt_tokens, stored = kRaw / 2.0;
  Fleet fleet = SomeFleet();
  fleet.redis.bytes_per_s = 1e12;
  EXPECT_DOUBLE_EQ(*Predicted(fleet).remote_s, tokens * stored / 10e9) << "the link";
  fleet.remote_bytes_per_s = 2e9;
  EXPECT_DOUBLE_EQ(*Predicted(fleet).remote_s, tokens * stored / 2e9);
  EXPECT_DOUBLE_EQ(*Predicted(fleet).local_s, tokens * stored / 10e9);
  fleet.redis = {.memory_bytes = 4096 * kGib, .bytes_per_s = 1.9e9};
  ASSERT_EQ(Predicted(fleet).redis_nodes(), 1u);
  EXPECT_DOUBLE_EQ(*Predicted(fleet).remote_s, tokens * stored / 1.9e9) << "one Redis node";
  EXPECT_FALSE(Predicted(fleet).remote_overloaded);
  fleet.remote_bytes_per_s = 1e6;
  EXPECT_TRUE(Predicted(fleet).remote_overloaded);
  Hardware h = SomeHardware();
  h.link_bytes_per_s = 0;
  fleet.remote_bytes_per_s = 0;
  EXPECT_FALSE(Predicted(fleet, h).remote_s.has_value()) << "nothing tells how fast it is";
  h = SomeHardware();
  std::swap(h.tiers[Hardware::kRam], h.tiers[Hardware::kDisk]);
  h.tiers[Hardware::kDisk].bytes_per_s = 0;
  EXPECT_FALSE(Predicted(fleet, h).local_s.has_value()) << "nor a disk alone";
}

TEST(FleetPlan, LoadsScale) {
  Fleet one = SomeFleet();
  one.remote_bytes = 8 * kGib;
  Fleet ten = one;
  ten.nodes = 40;
  ten.loads = 10;
  ten.remote_bytes = 80 * kGib;
  const FleetOutcome a = Predicted(one), b = Predicted(ten);
  EXPECT_EQ(a.local_rate, b.local_rate);
  EXPECT_EQ(a.remote_rate, b.remote_rate);
  EXPECT_EQ(10 * a.remote_pages, b.remote_pages);
  EXPECT_DOUBLE_EQ(10 * a.commands_per_s, b.commands_per_s);
  EXPECT_DOUBLE_EQ(a.node_remote_bytes_per_s, b.node_remote_bytes_per_s);
}

TEST(FleetPlan, AtRandomEveryNodeServesAllLoads) {
  Hardware h = SomeHardware();
  h.tiers[Hardware::kRam].bytes = 40 * kGib;
  Fleet ten = SomeFleet();
  ten.nodes = 40;
  ten.loads = 10;
  ten.routing = Routing::kRandom;
  const FleetOutcome loads = Predicted(ten, h);
  const FleetResult share = SimulateFleet(SomeTrace(), **FindEvictionPolicy("lru"),
                                          {.nodes = 40,
                                           .routing = Routing::kRandom,
                                           .node_blocks = 4 * kGib / kBlock,
                                           .remote_blocks = UINT64_MAX});
  EXPECT_EQ(loads.local_rate, share.local_rate());
  EXPECT_LT(loads.local_rate, loads.affinity_rate);
  EXPECT_DOUBLE_EQ(loads.local_rate + loads.remote_rate,
                   MeasureLoad(SomeTrace()).curve.InfiniteHitRate());
  ten.routing = Routing::kAffinity;
  EXPECT_FALSE(Predicted(ten).random_rate.has_value()) << "a tenth of 1 GiB is no cache";
}

TEST(FleetPlan, AffinityIsWorthItsDifference) {
  Fleet fleet = SomeFleet();
  const FleetOutcome affinity = Predicted(fleet);
  fleet.routing = Routing::kRandom;
  const FleetOutcome random = Predicted(fleet);
  EXPECT_GT(affinity.local_rate, random.local_rate);
  EXPECT_EQ(affinity.local_rate, random.affinity_rate);
  EXPECT_EQ(random.local_rate, *affinity.random_rate);
  EXPECT_LE(affinity.local_rate, affinity.pooled_rate + 0.02) << "chance shares memory unevenly";
  EXPECT_GT(random.node_remote_bytes_per_s, affinity.node_remote_bytes_per_s);
}

TEST(FleetPlan, WhatCannotBeIsNamed) {
  const auto message = [](const Fleet& fleet, const Hardware& hardware) {
    return std::string(
        PredictFleet(SomeTrace(), MeasureLoad(SomeTrace()), kRaw, kHalf, hardware, fleet)
            .status()
            .message());
  };
  Hardware small = SomeHardware();
  small.tiers[Hardware::kRam].bytes = kBlock - 1;
  EXPECT_THAT(message(SomeFleet(), {}), HasSubstr("--ram"));
  EXPECT_THAT(message(SomeFleet(), small), HasSubstr("--ram"));
  Fleet fleet = SomeFleet();
  fleet.loads = 3;
  EXPECT_THAT(message(fleet, SomeHardware()), HasSubstr("--loads 3"));
  fleet.loads = 4;
  fleet.routing = Routing::kRandom;
  EXPECT_THAT(message(fleet, SomeHardware()), HasSubstr("--routing random"));
  fleet = SomeFleet();
  fleet.nodes = 1025;
  EXPECT_THAT(message(fleet, SomeHardware()), HasSubstr("--loads"));
  fleet = SomeFleet();
  fleet.remote_bytes = kBlock - 1;
  EXPECT_THAT(message(fleet, SomeHardware()), HasSubstr("--remote"));
  Hardware priceless = SomeHardware();
  priceless.tiers[Hardware::kRam].price_per_gib = 0;
  EXPECT_FALSE(Predicted(SomeFleet(), priceless).cost.has_value());
  fleet = SomeFleet();
  fleet.remote_price_per_gib = 0;
  EXPECT_FALSE(Predicted(fleet).cost_per_hit.has_value());
}

}  // namespace
}  // namespace kvstow::planner
