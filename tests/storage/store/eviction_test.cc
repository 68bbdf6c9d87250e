// Which page goes next, through the store: every policy by name, values, parents, and what is a
// use.
#include "storage/policies/eviction_policy.h"
#include "tests/storage/store/store_fixture.h"

namespace kvstow {
namespace {

using absl::StatusCode;
using std::chrono::seconds;

class EvictionTest : public StoreTest {
 protected:
  static constexpr uint64_t kPage = 3013;  // about what a page takes

  // Segments that are there, from RAM alone; 0 = a miss.
  size_t Segments(uint64_t key) {
    const auto facts = store_->residency().Find(PrfPage{.key = key}.name());
    return facts.ok() ? facts->segments.size() : 0;
  }
  void Use(uint64_t key) { store_->residency().Use(PrfPage{.key = key}.name()); }
};

TEST_F(EvictionTest, WhatIsWorthLeastGoesFirstAcrossPagesLevelsBeforePages) {
  Open(0, 4 * kPage, 0);
  for (uint64_t key = 1; key <= 4; ++key) {
    ASSERT_OK(Put({.key = key, .gains = {0.9f, 0.09f, 0.01f}}).status());
    clock_.Advance(seconds(1));
  }
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 4 * kPage - 4000));
  for (uint64_t key = 1; key <= 4; ++key) EXPECT_EQ(Segments(key), 2u) << key;
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 4 * kPage - 8000));
  for (uint64_t key = 1; key <= 4; ++key) EXPECT_EQ(ReadBack({.key = key}), 1u) << key;
  EXPECT_EQ(store_->residency().Counters().dropped_segments, 8u);
  EXPECT_EQ(store_->residency().Counters().dropped_pages, 0u);
}

TEST_F(EvictionTest, LeavesGoBeforeTheirParents) {
  Open(0, 4 * kPage, 0);
  for (uint64_t key = 1; key <= 4; ++key) {
    ASSERT_OK(Put({.key = key, .whole = true, .parent = key - 1}).status());
  }
  for (int i = 0; i < 5; ++i) Use(4);  // it goes first all the same
  for (uint64_t left = 3; left > 0; --left) {
    ASSERT_OK(store_->cooling().Shrink(TierId::kHost, left * kPage));
    for (uint64_t key = 1; key <= 4; ++key) EXPECT_EQ(Segments(key), key <= left ? 3u : 0u) << key;
  }
}

TEST_F(EvictionTest, ALookupTellsWhoseParentIsWhose) {
  Open(0, 4 * kPage, 0);
  const std::vector<std::string> keys = {"key-1", "key-2", "key-3"};
  for (uint64_t key = 1; key <= 2; ++key) ASSERT_OK(Put({.key = key, .whole = true}).status());
  store_->residency().Release(store_->residency()
                                  .Lookup(1, Views(keys), true)
                                  .lease);  // misses key 3, which comes behind 2
  ASSERT_OK(Put({.key = 3, .whole = true}).status());
  for (int i = 0; i < 5; ++i) Use(3);
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 2 * kPage));
  EXPECT_EQ(Segments(3), 0u);
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, kPage));
  EXPECT_EQ(Segments(2), 0u);
}

// What comes before what is on disk too: told by a put, by a lookup before the page cooled, and
// kept by the cold form.
TEST_F(EvictionTest, LeavesGoFirstAfterARestart) {
  Open(0, 8 * kPage, 8 * kPage);
  store_->cooling().SetMakeColdForm(
      [](const PageName&, const SharedBytes&, std::span<const SharedBytes>) {
        return std::optional(PrfPage{.key = 3, .whole = true}.ToColdForm());
      });
  ASSERT_OK(Put({.key = 1, .whole = true}, Ack::kProcess).status());
  ASSERT_OK(Put({.key = 2, .whole = true, .parent = 1}, Ack::kProcess).status());
  ASSERT_OK(Put({.key = 3, .whole = true, .hot = true, .parent = 2}).status());
  ASSERT_OK(Put({.key = 4, .whole = true}).status());
  const std::vector<std::string> keys = {"key-1", "key-2", "key-3", "key-4"};
  EXPECT_TRUE(store_->residency().Release(store_->residency().Lookup(1, Views(keys), true).lease));
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 0));
  EXPECT_EQ(store_->residency().Counters().cooled_pages, 1u);
  Reopen();
  for (int i = 0; i < 5; ++i) Use(4);
  for (uint64_t left = 3; left > 0; --left) {
    ASSERT_OK(store_->cooling().Shrink(TierId::kDisk, left * kPage));
    for (uint64_t key = 1; key <= 4; ++key) EXPECT_EQ(Segments(key), key <= left ? 3u : 0u) << key;
  }
}

// A prompt that looks pages up, reads them and puts them again uses each once.
TEST_F(EvictionTest, WhatIsDoneUnderALeaseIsOneUse) {
  options_.eviction_policy = "gdsf";
  Open(0, 4 * kPage, 0);
  for (uint64_t key = 1; key <= 3; ++key) ASSERT_OK(Put({.key = key, .whole = true}).status());
  const LeaseId lease = Lease(1);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(ReadBack({.key = 1}), 3u);
    Use(1);
  }
  ASSERT_OK(Put({.key = 1, .whole = true}).status());
  ASSERT_TRUE(store_->residency().Release(lease));  // two uses: the first put, the lookup
  for (int i = 0; i < 2; ++i) {
    const std::vector<std::string> keys = {"key-3"};
    EXPECT_EQ(store_->residency().Lookup(1, Views(keys), false).pages.size(), 1u)
        << "only looking is none";
  }
  for (int i = 0; i < 2; ++i) Use(2);  // three
  for (const uint64_t key : {3, 1, 2}) {
    EXPECT_EQ(Segments(key), 3u);
    ASSERT_OK(store_->cooling().Shrink(TierId::kHost, Bytes(TierId::kHost) - 1));
    EXPECT_EQ(Segments(key), 0u) << key;
  }
}

TEST_F(EvictionTest, EveryPolicyMayBeChosenAndUnknownOnesAreRefused) {
  for (const PolicyInfo& policy : EvictionPolicies()) {
    options_.eviction_policy = std::string(policy.name);
    Open(2 * kPage, 4 * kPage, 8 * kPage);
    for (uint64_t key = 1; key <= 40; ++key) {
      ASSERT_OK(Put({.key = key}, key % 3 == 0 ? Ack::kProcess : Ack::kMemory).status());
      Use(key / 2);
      for (const TierUsage& tier : store_->residency().Usage().tiers) {
        EXPECT_LE(tier.encoded_bytes, tier.budget_bytes);
      }
    }
    Reopen();
    for (uint64_t key = 1; key <= 40; ++key) EXPECT_EQ(ReadBack({.key = key}), Segments(key));
    for (const TierId t : {TierId::kGpu, TierId::kHost, TierId::kDisk}) {
      ASSERT_OK(store_->cooling().Shrink(t, 0)) << policy.name;
    }
    EXPECT_EQ(store_->residency().Usage().pages, 0u) << policy.name;
  }
  TieredStoreParts parts;
  parts.tiers[1] = MakeMemoryTier(HostDevice());
  options_.budget_bytes = {0, kPage, 0};
  options_.eviction_policy = "random";
  EXPECT_THAT(TieredStore::Open(options_, std::move(parts)).status(),
              HasCode(StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace kvstow
