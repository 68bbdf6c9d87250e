#include "client/planner/outcome.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/planner/bandwidth.h"

namespace kvstow::planner {
namespace {

using testing::HasSubstr;

constexpr uint64_t kRaw = 1 << 20;            // bytes of a token
constexpr uint64_t kGib = uint64_t{1} << 30;  // 64 raw blocks of 16 tokens
const RecipeSize kRawRecipe = {.recipe = "raw", .ratio = 1};
const RecipeSize kHalf = {.recipe = "half", .ratio = 2, .origin = Origin::kGiven};

// 1,000 blocks in 100 s: 200 hits need 64 blocks, 100 more 256, 100 more 1,024.
Load SomeLoad() {
  std::vector<uint64_t> hits(1025);
  hits[64] = 200;
  hits[256] = 100;
  hits[1024] = 100;
  return {.block_tokens = 16,
          .requests = 100,
          .distinct_blocks = 600,
          .span_s = 100,
          .prompt_tokens = 160,
          .output_tokens = 10,
          .curve = ReuseCurve(std::move(hits), 1000)};
}

Hardware SomeHardware() {
  Hardware h;
  h.tiers[Hardware::kRam] = {.bytes = kGib, .bytes_per_s = 100e9, .price_per_gib = 4};
  h.tiers[Hardware::kDisk] = {.bytes = 15 * kGib, .bytes_per_s = 1e9, .price_per_gib = 0.1};
  h.prefill_tokens_per_s = 1000;
  h.link_bytes_per_s = 10e9;
  h.disk_life_bytes = 1'000'000'000'000'000;
  h.write_amplification = 2;
  return h;
}

TEST(Outcome, TheRecipesOwnDecoderTellsBeforeTheHardwares) {
  Hardware h = SomeHardware();
  h.decode_bytes_per_s = 1e9;
  RecipeSize recipe = kHalf;
  EXPECT_DOUBLE_EQ(*Predict(SomeLoad(), kRaw, recipe, h).hit_s, 160 * kRaw / 1e9);
  recipe.decode_bytes_per_s = 2e9;
  EXPECT_DOUBLE_EQ(*Predict(SomeLoad(), kRaw, recipe, h).hit_s, 160 * kRaw / 2e9);
}

TEST(Outcome, FollowsTheFormulas) {
  const Outcome o = Predict(SomeLoad(), kRaw, kRawRecipe, SomeHardware());
  EXPECT_DOUBLE_EQ(o.hit_rate, 0.4);
  EXPECT_DOUBLE_EQ(o.tiers[Hardware::kGpu].hit_rate, 0);
  EXPECT_DOUBLE_EQ(o.tiers[Hardware::kRam].hit_rate, 0.2);
  EXPECT_DOUBLE_EQ(o.tiers[Hardware::kDisk].hit_rate, 0.2);
  const double offered = 1000.0 * 16 * kRaw / 100;
  EXPECT_DOUBLE_EQ(o.tiers[Hardware::kDisk].read_bytes_per_s, 0.2 * offered);
  EXPECT_DOUBLE_EQ(o.link_bytes_per_s, 0.4 * offered);
  EXPECT_DOUBLE_EQ(o.stored_bytes_per_s, 0.6 * offered);
  EXPECT_DOUBLE_EQ(*o.disk_bytes_per_day, 0.6 * offered * 2 * 86400);
  EXPECT_DOUBLE_EQ(*o.disk_life_years, 1e15 / (0.6 * offered * 2 * 86400) / 365);
  EXPECT_DOUBLE_EQ(*o.break_even_bytes_per_s, kRaw * 1000.0);
  EXPECT_DOUBLE_EQ(*o.cold_s, 0.16);
  EXPECT_DOUBLE_EQ(*o.hit_s, 160 * kRaw / 10e9) << "RAM is faster than the link";
  EXPECT_DOUBLE_EQ(*o.warm_s, 160 * (0.6 / 1000 + 0.2 * kRaw / 10e9 + 0.2 * kRaw / 1e9));
  EXPECT_DOUBLE_EQ(*o.cost, 4 + 1.5);
  EXPECT_FALSE(o.overloaded());
}

TEST(Outcome, FewerBytesHitMoreAndCostLess) {
  const Outcome o = Predict(SomeLoad(), kRaw, kHalf, SomeHardware());
  EXPECT_DOUBLE_EQ(o.tiers[Hardware::kRam].hit_rate, 0.2) << "128 blocks now";
  EXPECT_DOUBLE_EQ(o.hit_rate, 0.4);
  EXPECT_DOUBLE_EQ(*o.break_even_bytes_per_s, kRaw * 500.0);
  EXPECT_DOUBLE_EQ(*o.hit_s, 160 * kRaw / 2 / 10e9);
}

TEST(Outcome, ADecoderCanBeTheSlowest) {
  Hardware h = SomeHardware();
  h.decode_bytes_per_s = 0.5e9;
  EXPECT_DOUBLE_EQ(*Predict(SomeLoad(), kRaw, kHalf, h).hit_s, 160 * kRaw / 0.5e9);
}

TEST(Outcome, WhatIsNotToldStaysEmpty) {
  Hardware h;
  h.tiers[Hardware::kRam].bytes = kGib;
  Outcome o = Predict(SomeLoad(), kRaw, kRawRecipe, h);
  EXPECT_DOUBLE_EQ(o.hit_rate, 0.2);
  EXPECT_FALSE(o.cold_s || o.warm_s || o.hit_s || o.cost || o.break_even_bytes_per_s);
  EXPECT_FALSE(o.disk_bytes_per_day || o.disk_life_years);
  h.prefill_tokens_per_s = 1000;
  o = Predict(SomeLoad(), kRaw, kRawRecipe, h);
  EXPECT_TRUE(o.cold_s && o.break_even_bytes_per_s);
  EXPECT_FALSE(o.warm_s || o.hit_s) << "nothing tells how long a fetch takes";
}

TEST(Outcome, ADiskOfUnknownSpeedHasNoTime) {
  Hardware h = SomeHardware();
  h.tiers[Hardware::kDisk].bytes_per_s = 0;
  Outcome o = Predict(SomeLoad(), kRaw, kRawRecipe, h);
  EXPECT_DOUBLE_EQ(o.hit_rate, 0.4);
  EXPECT_TRUE(o.hit_s.has_value()) << "RAM is the fastest";
  EXPECT_FALSE(o.warm_s.has_value()) << "a part of the hits is on the disk";
  h.tiers[Hardware::kRam].bytes = 0;
  o = Predict(SomeLoad(), kRaw, kRawRecipe, h);
  EXPECT_FALSE(o.hit_s || o.warm_s);
  EXPECT_TRUE(o.cold_s.has_value());
}

TEST(Outcome, TooMuchForALinkIsSaid) {
  Hardware h = SomeHardware();
  h.tiers[Hardware::kDisk].bytes_per_s = 30e6;
  h.link_bytes_per_s = 60e6;
  const Outcome o = Predict(SomeLoad(), kRaw, kRawRecipe, h);
  EXPECT_TRUE(o.tiers[Hardware::kDisk].overloaded);
  EXPECT_TRUE(o.link_overloaded);
  EXPECT_FALSE(o.tiers[Hardware::kRam].overloaded);
}

TEST(Advise, TheCheapestMeetsTheGoalAndNoCheaperStepDoes) {
  Hardware h = SomeHardware();
  const std::vector<RecipeSize> recipes = {kRawRecipe, kHalf};
  const auto found = Advise(SomeLoad(), kRaw, recipes, h, {.hit_rate = 0.3});
  ASSERT_TRUE(found.ok() && found->has_value()) << found.status();
  const Advice& advice = **found;
  EXPECT_EQ(advice.cheapest.recipe, 1u);
  EXPECT_EQ(advice.cheapest.ram_bytes, kGib) << "256 half blocks take 2 GiB: the disk is cheaper";
  EXPECT_EQ(advice.cheapest.disk_bytes, kGib);
  EXPECT_DOUBLE_EQ(*advice.cheapest.outcome.cost, 4.1);
  ASSERT_EQ(advice.steps.size(), 3u) << "less RAM there is not";
  for (const Setting& s : advice.steps) {
    EXPECT_TRUE(s.outcome.hit_rate < 0.3 || *s.outcome.cost > 4.1);
  }
  h.tiers[Hardware::kDisk].price_per_gib = 0;
  const auto ram = Advise(SomeLoad(), kRaw, recipes, h, {.hit_rate = 0.3});
  ASSERT_TRUE(ram.ok() && ram->has_value());
  EXPECT_EQ((*ram)->cheapest.ram_bytes, 2 * kGib);
  EXPECT_EQ((*ram)->cheapest.disk_bytes, 0u);
}

TEST(Advise, SlowHardwareAndImpossibleGoals) {
  Hardware h = SomeHardware();
  const std::vector<RecipeSize> recipes = {kRawRecipe};
  h.tiers[Hardware::kDisk].bytes_per_s = 1e6;
  const auto no_disk = Advise(SomeLoad(), kRaw, recipes, h, {.hit_rate = 0.3});
  ASSERT_TRUE(no_disk.ok() && no_disk->has_value());
  EXPECT_EQ((*no_disk)->cheapest.ram_bytes, 4 * kGib) << "the disk is too slow for any hit";
  EXPECT_FALSE(Advise(SomeLoad(), kRaw, recipes, h, {.hit_rate = 0.41})->has_value());
  const auto fast = Advise(SomeLoad(), kRaw, recipes, h, {.first_token_s = 0.15});
  ASSERT_TRUE(fast.ok() && fast->has_value());
  EXPECT_LE(*(*fast)->cheapest.outcome.warm_s, 0.15);
  h.prefill_tokens_per_s = 0;
  EXPECT_THAT(
      std::string(Advise(SomeLoad(), kRaw, recipes, h, {.first_token_s = 1}).status().message()),
      HasSubstr("prefill"));
  h = SomeHardware();
  h.link_bytes_per_s = 0;
  EXPECT_THAT(
      std::string(Advise(SomeLoad(), kRaw, recipes, h, {.first_token_s = 1}).status().message()),
      HasSubstr("link"));
  h = SomeHardware();
  h.tiers[Hardware::kDisk].bytes_per_s = 0;
  EXPECT_THAT(
      std::string(Advise(SomeLoad(), kRaw, recipes, h, {.first_token_s = 1}).status().message()),
      HasSubstr("--disk-bandwidth"));
  EXPECT_TRUE(Advise(SomeLoad(), kRaw, recipes, h, {.hit_rate = 0.3}).ok());
  h.tiers[Hardware::kDisk].price_per_gib = 0;
  EXPECT_TRUE(Advise(SomeLoad(), kRaw, recipes, h, {.first_token_s = 1}).ok())
      << "no disk is bought";
  h.tiers[Hardware::kRam].price_per_gib = 0;
  EXPECT_THAT(
      std::string(Advise(SomeLoad(), kRaw, recipes, h, {.hit_rate = 0.1}).status().message()),
      HasSubstr("price"));
}

TEST(FetchTime, TheSlowestPartDecidesAndHasAName) {
  const Hardware hardware{.link_bytes_per_s = 1e9, .decode_bytes_per_s = 8e9};
  const RecipeSize recipe{.recipe = "4x", .ratio = 4};
  const FetchTime by_link = TimeToFetch(hardware, 2e9, 4000, recipe);
  EXPECT_DOUBLE_EQ(by_link.link_s, 1e-6);
  EXPECT_DOUBLE_EQ(by_link.tier_s, 0.5e-6);
  EXPECT_DOUBLE_EQ(by_link.decode_s, 0.5e-6);
  EXPECT_DOUBLE_EQ(by_link.seconds(), 1e-6);
  EXPECT_EQ(by_link.limit(), "link");
  EXPECT_EQ(TimeToFetch(hardware, 0.5e9, 4000, recipe).limit(), "tier");
  RecipeSize slow = recipe;
  slow.decode_bytes_per_s = 1e9;
  const FetchTime by_decoder = TimeToFetch(hardware, 0, 4000, slow);
  EXPECT_EQ(by_decoder.limit(), "decoder");
  EXPECT_DOUBLE_EQ(by_decoder.seconds(), 4e-6);
  EXPECT_EQ(TimeToFetch({}, 0, 4000, recipe).limit(), "");
  EXPECT_EQ(TimeToFetch({}, 0, 4000, recipe).seconds(), 0);
}

TEST(Bandwidth, UnitsOfBytesAndBits) {
  const std::pair<const char*, double> good[] = {
      {"10GB/s", 10e9},     {"25Gbit/s", 25e9 / 8}, {"100Gbps", 100e9 / 8},  {"3GiB/s", 3.0 * kGib},
      {"1.5GB", 1.5e9},     {"8 bit/s", 1},         {"100 Mbit/s", 12.5e6},  {"25Gbit", 25e9 / 8},
      {"25Gb/s", 25e9 / 8}, {"3GBps", 3e9},         {"8Gib/s", 1.0 * kGib},  {"8kb/s", 1e3},
      {"8gbit/s", 1e9},     {"3gB/s", 3e9},         {"100GBIT/S", 100e9 / 8}};
  for (const auto& [text, bytes] : good) {
    const auto speed = ParseBandwidth(text);
    ASSERT_TRUE(speed.ok()) << text << speed.status();
    EXPECT_DOUBLE_EQ(*speed, bytes) << text;
  }
  for (const char* text : {"", "0", "0GB/s", "fast", "-3GB/s", "10GB/h", "Gbit/s", "GB/s", "3gb/s",
                           "3gib/s", "100mbps", "10G", "10G/s", "1000"}) {
    EXPECT_THAT(std::string(ParseBandwidth(text).status().message()), HasSubstr("bandwidth"))
        << text;
  }
}

}  // namespace
}  // namespace kvstow::planner
