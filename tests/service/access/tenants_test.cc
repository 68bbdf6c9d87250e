// Tenants' numbers, and their limits of streams and bandwidth.
#include "service/access/tenants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <optional>
#include <vector>

namespace kvstow::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TenantTableTest : public ::testing::Test {
 protected:
  static TenantLimits PutRate(uint64_t rate) { return {.put_bytes_per_second = rate}; }

  ManualClock clock_;
  TenantTable tenants_{clock_};
};

TEST_F(TenantTableTest, ANameKeepsItsNumber) {
  EXPECT_EQ(tenants_.IdOf(""), kOnlyTenant);
  const TenantId a = tenants_.IdOf("a"), b = tenants_.IdOf("b");
  EXPECT_NE(a, b);
  tenants_.SetLimits({{"c", {.weight = 2}}});
  EXPECT_EQ(tenants_.IdOf("a"), a);
  EXPECT_EQ(tenants_.All()[b].tenant, "b");
}

TEST_F(TenantTableTest, TheStoreIsToldEachChangeOnce) {
  std::map<TenantId, std::vector<TenantShare>> told;
  tenants_.SetLimits({{"a", {.weight = 2}}, {"b", {.pages = 7}}});
  tenants_.TellStore([&](std::span<const std::pair<TenantId, TenantShare>> shares) {
    for (const auto& [id, share] : shares) told[id].push_back(share);
  });
  const TenantId a = tenants_.IdOf("a"), b = tenants_.IdOf("b");
  tenants_.SetLimits({{"a", {.weight = 2}}, {"b", {.pages = 8}}});
  tenants_.SetLimits({{"b", {.pages = 8}}});
  EXPECT_THAT(told[a], ElementsAre(TenantShare{.weight = 2}, TenantShare{}));
  EXPECT_THAT(told[b], ElementsAre(TenantShare{.pages = 7}, TenantShare{.pages = 8}));
  EXPECT_EQ(tenants_.LimitsOf("a"), TenantLimits());
}

TEST_F(TenantTableTest, LimitsThatContradictThemselvesAreRefused) {
  for (const double weight : {0.0, -1.0, 1e9, std::numeric_limits<double>::quiet_NaN()}) {
    const absl::Status refused = tenants_.SetLimitsOf("a", {.weight = weight});
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << weight;
  }
  const absl::Status refused =
      tenants_.SetLimitsOf("a", {.limit = {0, 10, 0}, .guarantee = {0, 11, 0}});
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("in host is more than the limit"));
  EXPECT_TRUE(tenants_.SetLimitsOf("a", {.limit = {0, 10, 0}, .guarantee = {5, 10, 0}}).ok());
}

TEST_F(TenantTableTest, StreamsAreCountedByTenant) {
  tenants_.SetLimits({{"a", {.streams = 2}}});
  std::optional<TenantTable::Stream> one = *tenants_.OpenStream("a");
  const auto two = tenants_.OpenStream("a");
  ASSERT_TRUE(two.ok());
  const auto three = tenants_.OpenStream("a");
  EXPECT_TRUE(absl::IsResourceExhausted(three.status()));
  EXPECT_THAT(std::string(three.status().message()), HasSubstr("'a' has 2 streams"));
  EXPECT_TRUE(tenants_.OpenStream("b").ok());
  one.reset();
  EXPECT_TRUE(tenants_.OpenStream("a").ok());
  EXPECT_EQ(tenants_.All()[tenants_.IdOf("a")].refused, 1u);
}

TEST_F(TenantTableTest, BandwidthIsARateAndASecondOfIt) {
  tenants_.SetLimits({{"a", PutRate(1000)}});
  EXPECT_TRUE(tenants_.TakePut("a", 900).ok());
  EXPECT_TRUE(tenants_.TakePut("a", 600).ok()) << "there was something left";
  const absl::Status refused = tenants_.TakePut("a", 1);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("try again in 501 ms"));
  EXPECT_TRUE(tenants_.TakePut("b", 1 << 30).ok());
  EXPECT_TRUE(tenants_.CheckGet("a").ok());
  clock_.Advance(milliseconds(500));
  EXPECT_FALSE(tenants_.TakePut("a", 1).ok());
  clock_.Advance(milliseconds(1));
  EXPECT_TRUE(tenants_.TakePut("a", 1).ok());
}

TEST_F(TenantTableTest, OverTimeNoMoreThanTheRatePasses) {
  tenants_.SetLimits({{"a", {.get_bytes_per_second = 10'000}}});
  uint64_t got = 0;
  for (int ms = 0; ms < 60'000; ms += 10) {
    if (tenants_.CheckGet("a").ok()) {
      tenants_.TakeGet("a", 700);
      got += 700;
    }
    clock_.Advance(milliseconds(10));
  }
  EXPECT_NEAR(static_cast<double>(got), 61 * 10'000.0, 1'500);
}

TEST_F(TenantTableTest, AClockThatStandsOrJumpsFillsASecondAtMost) {
  tenants_.SetLimits({{"a", PutRate(1000)}});
  EXPECT_TRUE(tenants_.TakePut("a", 5000).ok());
  clock_.Advance(-seconds(100));
  EXPECT_FALSE(tenants_.TakePut("a", 1).ok());
  clock_.Advance(seconds(5));
  EXPECT_TRUE(tenants_.TakePut("a", 1000).ok()) << "what was lost by the jump does not count";
  EXPECT_FALSE(tenants_.TakePut("a", 1).ok());
  clock_.Advance(std::chrono::hours(24));
  EXPECT_TRUE(tenants_.TakePut("a", 1000).ok());
  EXPECT_FALSE(tenants_.TakePut("a", 1).ok());
}

}  // namespace
}  // namespace kvstow::testing
