// What a store promises, call by call. Every step checks the accounting.
#include "storage/store/tiered_store.h"

#include "tests/storage/store/store_fixture.h"

namespace kvstow {
namespace {

using absl::StatusCode;

TEST_F(StoreTest, GivesBackWhatWasPut) {
  Open(0, 64 * kKiB, 0);
  const PrfPage page{.key = 1};
  const auto put = Put(page);
  ASSERT_OK(put.status());
  EXPECT_EQ(*put, PutOutcome::kStored);
  EXPECT_EQ(ReadBack(page), 3u);
  const auto facts = store_->residency().Find(page.name());
  ASSERT_OK(facts.status());
  EXPECT_EQ(AsString(facts->header.span()), "header of 1@1");
  EXPECT_EQ(facts->raw_digest, page.raw_digest());
  EXPECT_EQ(facts->stored_bytes(), page.stored_bytes());
  EXPECT_EQ(Bytes(TierId::kHost), page.stored_bytes());
}

TEST_F(StoreTest, SameContentAgainIsAlreadyThereOtherContentIsAConflict) {
  Open(0, 64 * kKiB, 0);
  ASSERT_OK(Put({.key = 1}).status());
  EXPECT_EQ(*Put({.key = 1}), PutOutcome::kAlreadyThere);
  EXPECT_EQ(*Put({.key = 1, .version = 2}), PutOutcome::kConflict);
  EXPECT_EQ(ReadBack({.key = 1}), 3u) << "the first is kept";
  EXPECT_EQ(store_->residency().Counters().conflicts, 1u);
  EXPECT_EQ(*Put({.key = 1, .version = 2, .space = 2}), PutOutcome::kStored) << "another space";
}

TEST_F(StoreTest, LookupFindsTheLongestPrefix) {
  Open(0, 64 * kKiB, 0);
  for (const uint64_t key : {1, 2, 4}) ASSERT_OK(Put({.key = key}).status());
  const std::vector<std::string> keys = {"key-1", "key-2", "key-3", "key-4"};
  const PrefixMatch match = store_->residency().Lookup(1, Views(keys), true);
  EXPECT_EQ(match.pages.size(), 2u);
  EXPECT_NE(match.lease, 0u);
  EXPECT_EQ(store_->residency().Usage().leases, 1u);
  EXPECT_TRUE(store_->residency().Release(match.lease));
  EXPECT_FALSE(store_->residency().Release(match.lease));
  EXPECT_EQ(store_->residency().Usage().leases, 0u);
  EXPECT_EQ(store_->residency().Lookup(2, Views(keys), true).lease, 0u);
}

TEST_F(StoreTest, ALeaseHasEachPageOnceHoweverOftenItWasAskedFor) {
  Open(0, 64 * kKiB, 0);
  for (const uint64_t key : {1, 2}) ASSERT_OK(Put({.key = key}).status());
  const std::vector<std::string> keys = {"key-1", "key-2", "key-1", "key-1"};
  const PrefixMatch match = store_->residency().Lookup(1, Views(keys), true);
  EXPECT_EQ(match.pages.size(), 4u);
  EXPECT_EQ(store_->residency().Usage().leased_pages, 2u);
  EXPECT_OK(store_->residency().CheckInvariants());
  EXPECT_TRUE(store_->residency().Release(match.lease));
  EXPECT_EQ(store_->residency().Usage().leased_pages, 0u);
  ASSERT_OK(store_->Delete({.space = 1, .key = "key-1"}, /*force=*/false));
}

TEST_F(StoreTest, BeyondItsLeasesALookupFindsAllTheSameAndGetsNone) {
  options_.lease_limits = {.leases = 2, .pages = 3};
  Open(0, 64 * kKiB, 0);
  for (const uint64_t key : {1, 2}) ASSERT_OK(Put({.key = key}).status());
  const std::vector<std::string> both = {"key-1", "key-2"}, one = {"key-1"};
  const PrefixMatch first = store_->residency().Lookup(1, Views(both), true);
  EXPECT_NE(first.lease, 0u);
  const PrefixMatch refused = store_->residency().Lookup(1, Views(both), true);
  EXPECT_EQ(refused.pages.size(), 2u);
  EXPECT_EQ(refused.lease, 0u);
  EXPECT_TRUE(refused.lease_refused);
  EXPECT_NE(store_->residency().Lookup(1, Views(one), true).lease, 0u);
  EXPECT_EQ(store_->residency().Lookup(1, Views(one), true).lease, 0u)
      << "two are all there may be";
  EXPECT_FALSE(store_->residency().Lookup(1, Views(one), false).lease_refused)
      << "none was asked for";
  EXPECT_TRUE(store_->residency().Release(first.lease));
  EXPECT_NE(store_->residency().Lookup(1, Views(both), true).lease, 0u);
}

TEST_F(StoreTest, LookupTellsWhatIsThereOfAPage) {
  static int counted;
  counted = 0;
  options_.count_levels = [](std::span<const uint8_t> header, size_t segments) {
    EXPECT_FALSE(header.empty());
    ++counted;
    return static_cast<uint8_t>(10 * segments);
  };
  Open(0, 64 * kKiB, 0);
  const PrfPage page{.key = 1};
  ASSERT_OK(Put(page).status());
  const std::vector<std::string> keys = {page.name().key};
  const auto look = [&] { return store_->residency().Lookup(1, Views(keys), false).pages.at(0); };
  for (int time = 0; time < 3; ++time) {
    const FoundPage found = look();
    const PageFacts facts = *store_->residency().Find(page.name());
    EXPECT_EQ(found.number, facts.number);
    EXPECT_EQ(found.stored_bytes, facts.stored_bytes());
    EXPECT_EQ(found.tokens, facts.tokens);
    EXPECT_EQ(found.segments, 3u);
    EXPECT_EQ(found.levels, 30u);
    EXPECT_EQ(found.tier, TierId::kHost);
  }
  EXPECT_EQ(counted, 1) << "what was counted is remembered";
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, store_->residency().Usage().encoded_bytes - 1));
  EXPECT_EQ(look().segments, 2u);
  EXPECT_EQ(look().levels, 20u) << "and not taken for what is left of the page";
  EXPECT_EQ(counted, 2);
}

TEST_F(StoreTest, WhatSegmentsAreWorthMayChange) {
  Open(0, 64 * kKiB, 640 * kKiB);
  const PrfPage page{.key = 1};
  ASSERT_OK(Put(page, Ack::kProcess).status());
  const PageFacts before = *store_->residency().Find(page.name());
  const std::vector<float> gains = {8, 4, 2};
  ASSERT_OK(store_->SetGains(page.name(), before.number, gains));
  const PageFacts after = *store_->residency().Find(page.name());
  ASSERT_EQ(after.segments.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(after.segments[i].gain, gains[i]);
  EXPECT_EQ(ReadBack(page), 3u);
  EXPECT_THAT(store_->SetGains(page.name(), before.number, std::span(gains).first(2)),
              HasCode(StatusCode::kInvalidArgument));
  EXPECT_THAT(store_->SetGains(page.name(), before.number + 1, gains),
              HasCode(StatusCode::kNotFound));
  Reopen();
  EXPECT_EQ(store_->residency().Find(page.name())->segments[0].gain, before.segments[0].gain)
      << "what is on disk is what was put";
}

TEST_F(StoreTest, DeletedPagesAreGoneAndLeasedOnesAreKept) {
  Open(0, 64 * kKiB, 64 * kKiB);
  const PrfPage page{.key = 1};
  ASSERT_OK(Put(page, Ack::kProcess).status());
  const std::vector<std::string> keys = {page.name().key};
  const LeaseId lease = store_->residency().Lookup(1, Views(keys), true).lease;
  EXPECT_THAT(store_->Delete(page.name(), false), HasCode(StatusCode::kFailedPrecondition));
  EXPECT_OK(store_->Delete(page.name(), true));
  EXPECT_THAT(store_->Delete(page.name(), true), HasCode(StatusCode::kNotFound));
  EXPECT_EQ(ReadBack(page), 0u);
  EXPECT_TRUE(store_->residency().Release(lease))
      << "a lease outlives a page that was deleted by force";
  EXPECT_EQ(store_->residency().Usage().encoded_bytes, 0u);
  Reopen();
  EXPECT_EQ(ReadBack(page), 0u);
}

TEST_F(StoreTest, RestartIsWarm) {
  Open(0, 64 * kKiB, 640 * kKiB);
  for (uint64_t key = 1; key <= 8; ++key) ASSERT_OK(Put({.key = key}, Ack::kProcess).status());
  ASSERT_OK(Put({.key = 9}, Ack::kMemory).status());
  Reopen();
  EXPECT_EQ(store_->residency().Counters().recovered_pages, 8u);
  EXPECT_EQ(store_->recovered_spaces().size(), 1u);
  for (uint64_t key = 1; key <= 8; ++key) EXPECT_EQ(ReadBack({.key = key}), 3u) << key;
  EXPECT_EQ(ReadBack({.key = 9}), 0u) << "it was acknowledged as held in memory only";
  EXPECT_GT(store_->residency().NewSpaceId(), 1u);
}

TEST_F(StoreTest, RefusesMalformedPages) {
  Open(0, 64 * kKiB, 0);
  const PageToStore good = PrfPage{.key = 1}.ToStore();
  std::vector<PageToStore> bad(6, good);
  bad[0].name.key = "";
  bad[1].name.key = std::string(65, 'k');
  bad[2].name.space = 0;
  bad[3].facts.clear();
  bad[4].bodies.pop_back();
  bad[5].facts[1].bytes += 1;
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_THAT(store_->Put(bad[i]).status(), HasCode(StatusCode::kInvalidArgument)) << i;
  }
}

TEST_F(StoreTest, OptionsThatContradictEachOtherAreRefused) {
  const auto refused = [](TieredStoreOptions options) {
    EXPECT_THAT(TieredStore::Open(options, {}).status(), HasCode(StatusCode::kFailedPrecondition));
  };
  refused({});                           // no budget at all
  refused({.budget_bytes = {0, 0, 1}});  // a disk that is not there
  TieredStoreOptions options{.budget_bytes = {0, 1, 0}};
  options.low_watermark = 0.99;
  refused(options);
}

TEST_F(StoreTest, AnUnreadableSpaceKeepsItsId) {
  Open(0, 0, 300 * kKiB);
  EXPECT_THAT(store_->SaveSpace({.id = 0}), HasCode(StatusCode::kInvalidArgument));
  ASSERT_OK(Put({.key = 1, .space = 4}, Ack::kProcess).status());  // space 4 was never saved
  Reopen();
  EXPECT_EQ(ReadBack({.key = 1, .space = 4}), 0u);
  EXPECT_GT(store_->residency().NewSpaceId(), 4u);
  EXPECT_THAT(store_->SaveSpace({.id = 4}), HasCode(StatusCode::kFailedPrecondition));
  EXPECT_EQ(store_->residency().Counters().damaged_records, 1u);
}

}  // namespace
}  // namespace kvstow
