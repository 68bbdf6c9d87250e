// The passive parts of the store: index, leases, placement, staging.
#include <gtest/gtest.h>

#include "storage/lease_table.h"
#include "storage/page_index.h"
#include "storage/placement.h"
#include "storage/staging.h"
#include "tests/storage/status_matchers.h"

namespace kvstow {
namespace {

using absl::StatusCode;
using std::chrono::seconds;

std::unique_ptr<PageEntry> Entry(PageNumber number, std::vector<uint32_t> sizes, TierId tier) {
  auto page = std::make_unique<PageEntry>();
  page->number = number;
  page->name = {.space = 1, .key = std::to_string(number)};
  page->header = SharedBytes::Take(std::string("head"));
  page->raw_bytes = 100;
  for (const uint32_t size : sizes) {
    page->segments.push_back({.facts = {.bytes = size}});
    page->segments.back().tiers.Add(tier);
  }
  return page;
}

TEST(PageIndex, CountsEveryChange) {
  PageIndex index;
  PageEntry* const page = index.Insert(Entry(1, {10, 20}, TierId::kHost));
  EXPECT_EQ(index.bytes(TierId::kHost), 34u);
  index.Change(page, [](PageEntry& p) {
    for (auto& segment : p.segments) segment.tiers.Add(TierId::kDisk);
    p.segments[1].tiers.Remove(TierId::kHost);
  });
  EXPECT_OK(index.CheckInvariants());
  EXPECT_EQ(index.bytes(TierId::kHost), 14u) << "the base and the header";
  EXPECT_EQ(index.bytes(TierId::kDisk), 34u);
  EXPECT_EQ(index.usage().encoded_bytes, 34u) << "a page is counted once";
  EXPECT_EQ(index.usage().tiers[1].pages, 1u);
  EXPECT_EQ(index.usage().tiers[2].pages, 0u) << "its base is hotter elsewhere";
  EXPECT_EQ(index.usage(1), index.usage());
  EXPECT_EQ(index.usage(2), StoreUsage{});
  index.Remove(page);
  EXPECT_EQ(index.usage(), StoreUsage{});
  EXPECT_OK(index.CheckInvariants());
}

TEST(PageIndex, NoticesWhatIsOff) {
  PageIndex index;
  PageEntry* const page = index.Insert(Entry(1, {10, 20}, TierId::kHost));
  page->segments[1].facts.bytes = 21;  // past Change
  EXPECT_THAT(index.CheckInvariants(), HasCode(StatusCode::kInternal));
  page->segments[1].facts.bytes = 20;
  EXPECT_OK(index.CheckInvariants());
  index.Change(page, [](PageEntry& p) { p.segments[1].tiers.Add(TierId::kDisk); });
  EXPECT_THAT(index.CheckInvariants(), HasCode(StatusCode::kInternal)) << "no leading part on disk";
}

TEST(PageIndex, OldestFirstAndOfEquallyOldTheDeepest) {
  PageIndex index;
  for (PageNumber n = 1; n <= 4; ++n) {
    auto page = Entry(n, {10}, TierId::kHost);
    page->first_position = n * 16;
    page->age = 5;
    index.Insert(std::move(page));
  }
  index.Touch(index.Find(PageNumber{4}), 6);
  std::vector<PageNumber> order;
  for (const auto& [rank, page] : index.order(TierId::kHost)) order.push_back(page->number);
  EXPECT_EQ(order, (std::vector<PageNumber>{3, 2, 1, 4}));
  EXPECT_OK(index.CheckInvariants());
}

TEST(Placement, LastSegmentsLeaveFirst) {
  const std::vector<uint64_t> bytes = {100, 0, 50, 50};
  EXPECT_EQ(SegmentsToKeep(bytes, 1, false), 3u);
  EXPECT_EQ(SegmentsToKeep(bytes, 51, false), 2u);
  EXPECT_EQ(SegmentsToKeep(bytes, 101, false), 0u);
  EXPECT_EQ(SegmentsToKeep(bytes, 1'000, false), 0u);
  EXPECT_EQ(SegmentsToKeep(bytes, 1, true), 0u) << "a whole page goes whole";
}

TEST(LeaseTable, EndsByItself) {
  LeaseTable leases(seconds(10), 77);
  Time now{};
  const LeaseId a = leases.Grant({1, 2}, now);
  const LeaseId b = leases.Grant({2}, now + seconds(1));
  EXPECT_EQ(a, 77u);
  EXPECT_TRUE(leases.Renew(a, now + seconds(5)));
  EXPECT_FALSE(leases.Renew(b, now + seconds(11))) << "ended, though nobody has reaped it yet";
  const auto expired = leases.Expire(now + seconds(11));
  EXPECT_EQ(expired.leases, 1u);
  EXPECT_EQ(expired.pages, std::vector<PageNumber>{2});
  EXPECT_EQ(leases.CountPages(), (absl::flat_hash_map<PageNumber, uint32_t>{{1, 1}, {2, 1}}));
  EXPECT_EQ(leases.Release(a, now + seconds(12)), (std::vector<PageNumber>{1, 2}));
  EXPECT_EQ(leases.Release(a, now + seconds(12)), std::nullopt);
  EXPECT_EQ(leases.size(), 0u);
}

class StagingTest : public testing::Test {
 protected:
  const std::vector<uint8_t> piece_ = std::vector<uint8_t>(40, 7);
  ManualClock clock_;
  Staging staging_{{.budget_bytes = 100, .ttl = seconds(30), .clock = &clock_}};
};

TEST_F(StagingTest, PiecesInOrderMakeTheWhole) {
  const auto ticket = staging_.Begin(80);
  ASSERT_OK(ticket.status());
  ASSERT_OK(staging_.Append(*ticket, 0, piece_));
  EXPECT_THAT(staging_.Finish(*ticket).status(), HasCode(StatusCode::kFailedPrecondition));
  ASSERT_OK(staging_.Append(*ticket, 40, piece_));
  const auto bytes = staging_.Finish(*ticket);
  ASSERT_OK(bytes.status());
  EXPECT_EQ(bytes->size(), 80u);
  EXPECT_EQ(bytes->data()[79], 7);
  EXPECT_EQ(staging_.staged_bytes(), 0u);
  EXPECT_THAT(staging_.Finish(*ticket).status(), HasCode(StatusCode::kNotFound));
}

TEST_F(StagingTest, RefusesPiecesThatDoNotFit) {
  const auto ticket = staging_.Begin(60);
  ASSERT_OK(ticket.status());
  ASSERT_OK(staging_.Append(*ticket, 0, piece_));
  const auto refused = [&](uint64_t offset, std::span<const uint8_t> piece) {
    EXPECT_THAT(staging_.Append(*ticket, offset, piece), HasCode(StatusCode::kInvalidArgument));
  };
  refused(0, piece_);   // twice
  refused(50, piece_);  // a gap
  refused(40, piece_);  // too long
  refused(40, {});      // empty
  refused(~0ull, piece_);
  EXPECT_THAT(staging_.Append(999, 0, piece_), HasCode(StatusCode::kNotFound));
  EXPECT_THAT(staging_.Begin(0).status(), HasCode(StatusCode::kInvalidArgument));
}

TEST_F(StagingTest, BudgetAndTtlHold) {
  const auto ticket = staging_.Begin(60);
  ASSERT_OK(ticket.status());
  EXPECT_THAT(staging_.Begin(41).status(), HasCode(StatusCode::kResourceExhausted));
  EXPECT_THAT(staging_.Begin(~0ull).status(), HasCode(StatusCode::kResourceExhausted));
  clock_.Advance(seconds(29));
  ASSERT_OK(staging_.Append(*ticket, 0, piece_));
  clock_.Advance(seconds(29));
  EXPECT_EQ(staging_.Reap(), 0u) << "touched meanwhile";
  clock_.Advance(seconds(1));
  EXPECT_EQ(staging_.Reap(), 1u);
  EXPECT_EQ(staging_.open_tickets(), 0u);
  const auto whole = staging_.Begin(100);
  ASSERT_OK(whole.status()) << "the bytes are free again";
  staging_.Abort(*whole);
  staging_.Abort(*whole);
  EXPECT_EQ(staging_.staged_bytes(), 0u);
}

}  // namespace
}  // namespace kvstow
