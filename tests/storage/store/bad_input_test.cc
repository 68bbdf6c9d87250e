// What nobody should ask for: budgets of nothing, pages that fit nowhere, clocks that jump, storms
// of leases. Defined answers, and sums that stay exact.
#include <atomic>
#include <random>
#include <thread>

#include "tests/storage/disk/fake_disk.h"
#include "tests/storage/store/store_fixture.h"

namespace kvstow {
namespace {

using absl::StatusCode;
using std::chrono::hours;

class BadInputTest : public StoreTest {
 protected:
  static constexpr uint64_t kPage = 3013;  // about what a page takes

  void Wrap(TieredStoreParts& parts) override {
    if (parts.tiers[2] == nullptr) return;
    parts.tiers[2] = disk_.NewTier();
    parts.catalog = disk_.NewCatalog();
  }
  void ExpectBudgetsHold() {
    for (const TierUsage& tier : store_->residency().Usage().tiers) {
      EXPECT_LE(tier.encoded_bytes, tier.budget_bytes);
    }
  }

  FakeDisk disk_;
};

TEST_F(BadInputTest, ABudgetOfNothingLeavesATierOutAndNoneAtAllIsRefused) {
  EXPECT_THAT(TieredStore::Open({}, {}).status(), HasCode(StatusCode::kFailedPrecondition));
  Open(0, 0, 4 * kPage);
  ASSERT_OK(Put({.key = 1}).status());
  EXPECT_EQ(PagesIn(TierId::kDisk), 1u);
  EXPECT_OK(store_->cooling().Shrink(TierId::kGpu, 0)) << "there is nothing in it";
  EXPECT_EQ(ReadBack({.key = 1}), 3u);
}

TEST_F(BadInputTest, BudgetsSmallerThanAPageTakeNoneAndHoldWhatFits) {
  Open(1, kPage / 2, 3 * kPage);
  for (uint64_t key = 1; key <= 9; ++key) {
    ASSERT_OK(Put({.key = key}).status());
    EXPECT_EQ(PagesIn(TierId::kHost), 0u);
    ExpectBudgetsHold();
  }
  EXPECT_GT(store_->residency().Usage().pages, 1u);
  const PrfPage small{.key = 100, .sizes = {200, 100}};
  ASSERT_OK(Put(small).status());
  EXPECT_EQ(PagesIn(TierId::kHost), 1u);
  EXPECT_EQ(ReadBack(small), 2u);
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 0));
  EXPECT_EQ(ReadBack(small), 2u);
}

TEST_F(BadInputTest, APageLargerThanEveryTierIsRefusedAndCostsNobodyAnything) {
  Open(2 * kPage, 3 * kPage, 4 * kPage);
  for (uint64_t key = 1; key <= 6; ++key) ASSERT_OK(Put({.key = key}).status());
  const StoreUsage before = store_->residency().Usage();
  const PrfPage huge{.key = 100, .sizes = {20'000}};
  EXPECT_THAT(Put(huge).status(), HasCode(StatusCode::kResourceExhausted));
  EXPECT_EQ(store_->residency().Usage(), before);
}

TEST_F(BadInputTest, ABudgetLoweredWhileRunningIsReachedAndHeldAtTheNextStart) {
  Open(0, 20 * kPage, 40 * kPage);
  for (uint64_t key = 1; key <= 30; ++key) {
    ASSERT_OK(Put({.key = key}, key % 2 == 0 ? Ack::kProcess : Ack::kMemory).status());
  }
  for (const uint64_t pages : {10, 3, 1, 0}) {
    ASSERT_OK(store_->cooling().Shrink(TierId::kHost, pages * kPage));
    EXPECT_LE(Bytes(TierId::kHost), pages * kPage);
    EXPECT_OK(store_->residency().CheckInvariants());
  }
  ASSERT_OK(store_->cooling().Shrink(TierId::kDisk, 12 * kPage));
  EXPECT_LE(Bytes(TierId::kDisk), 12 * kPage);
  // A disk that holds more than it may: the first round of demotion brings it down.
  options_.budget_bytes = {0, 20 * kPage, 5 * kPage};
  Reopen();
  EXPECT_GT(Bytes(TierId::kDisk), 5 * kPage);
  EXPECT_OK(store_->residency().CheckInvariants());
  store_->cooling().RunDemotion();
  ExpectBudgetsHold();
  EXPECT_GT(store_->residency().Usage().pages, 0u);
  EXPECT_OK(Put({.key = 50}, Ack::kProcess).status());
}

TEST_F(BadInputTest, ABudgetMayBeSetWhileRunning) {
  Open(0, 10 * kPage, 20 * kPage);
  for (uint64_t key = 1; key <= 20; ++key) {
    ASSERT_OK(Put({.key = key}, key % 2 == 0 ? Ack::kProcess : Ack::kMemory).status());
  }
  // Lowered, it is reached at once; raised, it is used at once; below one page nothing fits.
  for (const uint64_t bytes : {4 * kPage, kPage / 2, uint64_t{0}, 15 * kPage}) {
    ASSERT_OK(store_->cooling().SetBudget(TierId::kHost, bytes));
    EXPECT_EQ(store_->residency().Usage().tiers[1].budget_bytes, bytes);
    ExpectBudgetsHold();
    for (uint64_t key = 100; key < 110; ++key) {
      EXPECT_OK(Put({.key = bytes + key}).status()) << "the disk takes what memory cannot";
      ExpectBudgetsHold();
    }
  }
  EXPECT_GT(Bytes(TierId::kHost), 9 * kPage);
  ASSERT_OK(store_->cooling().SetBudget(TierId::kDisk, 0));
  EXPECT_EQ(Bytes(TierId::kDisk), 0u);
  EXPECT_THAT(Put({.key = 500}, Ack::kProcess).status(), HasCode(StatusCode::kFailedPrecondition));
  ASSERT_OK(Put({.key = 501}).status());
  // What is leased stays until the lease ends; then the background brings it down.
  const LeaseId lease = Lease(501);
  ASSERT_OK(store_->cooling().SetBudget(TierId::kHost, 0));
  EXPECT_EQ(store_->residency().Usage().pages, 1u);
  EXPECT_OK(store_->residency().CheckInvariants());
  EXPECT_THAT(Put({.key = 502}).status(), HasCode(StatusCode::kResourceExhausted));
  // With a disk again it may move there.
  ASSERT_OK(store_->cooling().SetBudget(TierId::kDisk, 4 * kPage));
  store_->cooling().RunDemotion();
  EXPECT_EQ(Bytes(TierId::kHost), 0u);
  EXPECT_EQ(ReadBack({.key = 501}), 3u);
  ASSERT_OK(store_->cooling().SetBudget(TierId::kDisk, 0));
  EXPECT_EQ(store_->residency().Usage().pages, 1u);
  EXPECT_TRUE(store_->residency().Release(lease));
  store_->cooling().RunDemotion();
  EXPECT_EQ(store_->residency().Usage().pages, 0u);
  EXPECT_THAT(store_->cooling().SetBudget(TierId::kGpu, 1),
              HasCode(StatusCode::kFailedPrecondition));
  EXPECT_OK(store_->cooling().SetBudget(TierId::kGpu, 0));
}

TEST_F(BadInputTest, BudgetsSetUnderLoadHoldAndSumsStayExact) {
  Open(4 * kPage, 10 * kPage, 20 * kPage);
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t + 1);
      while (!stop) {
        const PrfPage page{.key = 1 + random() % 60, .whole = random() % 2 == 0};
        if (random() % 2 == 0) {
          store_->Put(page.ToStore(random() % 3 == 0 ? Ack::kProcess : Ack::kMemory))
              .status()
              .IgnoreError();
        } else {
          const LeaseId lease = Lease(page.key);
          ReadUnchecked({.key = page.key});
          if (lease != 0) store_->residency().Release(lease);
        }
      }
    });
  }
  std::mt19937_64 random(99);
  for (int i = 0; i < 150; ++i) {
    const auto t = static_cast<TierId>(random() % kTiers);
    const uint64_t budgets[] = {0, kPage / 2, 3 * kPage, 12 * kPage};
    EXPECT_OK(store_->cooling().SetBudget(t, budgets[random() % 4]));
    EXPECT_OK(store_->residency().CheckInvariants());
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  for (const TierId t : {TierId::kGpu, TierId::kHost, TierId::kDisk}) {
    ASSERT_OK(store_->cooling().SetBudget(t, 0));
  }
  store_->cooling().RunDemotion();
  EXPECT_EQ(store_->residency().Usage().pages, 0u);
  for (const TierId t : {TierId::kGpu, TierId::kHost, TierId::kDisk}) EXPECT_EQ(Bytes(t), 0u);
}

// A jump forward ends leases early, one back makes them last; nothing else depends on the time.
TEST_F(BadInputTest, ClocksThatJumpMoveTheEndsOfLeasesAndSpoilNoSums) {
  Open(0, 6 * kPage, 0);
  for (uint64_t key = 1; key <= 6; ++key) ASSERT_OK(Put({.key = key}).status());
  const LeaseId lease = Lease(1);
  clock_.Advance(-hours(24 * 365));
  const LeaseId of_the_past = Lease(2);
  for (uint64_t key = 10; key <= 30; ++key) {
    clock_.Advance(key % 2 == 0 ? hours(1) : -hours(1));
    ASSERT_OK(Put({.key = key}).status());
    ExpectBudgetsHold();
  }
  EXPECT_EQ(ReadBack({.key = 1}), 3u);
  EXPECT_FALSE(store_->residency().Renew(of_the_past));
  EXPECT_TRUE(store_->residency().Renew(lease));
  clock_.Advance(hours(24 * 365 * 2));
  EXPECT_FALSE(store_->residency().Renew(lease));
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 0));
  EXPECT_EQ(store_->residency().Usage().leases, 0u);
  EXPECT_EQ(store_->residency().Usage().pages, 0u);
}

TEST_F(BadInputTest, AStormOfLeasesBlocksNothingForLongerThanItsTtl) {
  constexpr uint64_t kPages = 50, kLeases = 5'000;
  Open(0, kPages * 4000, 0);
  std::vector<std::string> keys;
  for (uint64_t key = 1; key <= kPages; ++key) {
    ASSERT_OK(Put({.key = key}).status());
    keys.push_back(PrfPage{.key = key}.name().key);
  }
  std::vector<LeaseId> leases;
  for (uint64_t i = 0; i < kLeases; ++i)
    leases.push_back(store_->residency().Lookup(1, Views(keys), true).lease);
  EXPECT_EQ(store_->residency().Usage().leases, kLeases);
  EXPECT_THAT(store_->cooling().Shrink(TierId::kHost, 0), HasCode(StatusCode::kResourceExhausted));
  for (uint64_t i = 0; i < kLeases / 2; ++i) EXPECT_TRUE(store_->residency().Release(leases[i]));
  EXPECT_FALSE(store_->residency().Release(leases[0]));
  EXPECT_EQ(store_->residency().Usage().pages, kPages);
  EXPECT_OK(store_->residency().CheckInvariants());
  clock_.Advance(options_.lease_ttl);
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 0));
  EXPECT_EQ(store_->residency().Usage().leases, 0u);
  EXPECT_EQ(store_->residency().Counters().expired_leases, kLeases / 2);
}

TEST_F(BadInputTest, ManySmallPagesTakeNoMoreIndexThanTheyMay) {
  options_.index_bytes = 100 * 300;
  Open(0, 64 * kKiB, 16 << 20);
  for (uint64_t key = 1; key <= 2000; ++key) {
    ASSERT_OK(store_->Put(PrfPage{.key = key, .sizes = {24}}.ToStore(Ack::kProcess)).status());
    ASSERT_LE(store_->residency().Usage().index_bytes, options_.index_bytes + 300);
  }
  EXPECT_GT(store_->residency().Usage().pages, 50u);
  EXPECT_OK(store_->residency().CheckInvariants());

  // A restart with less reaches that too.
  options_.index_bytes /= 2;
  Reopen();
  EXPECT_GT(store_->residency().Usage().index_bytes, options_.index_bytes);
  store_->cooling().RunDemotion();
  EXPECT_LE(store_->residency().Usage().index_bytes, options_.index_bytes);

  // Where all are pinned, one more is refused, and nothing is forgotten.
  const std::vector<PageName> pages = store_->residency().Pages(0);
  for (const PageName& page : pages) ASSERT_OK(store_->residency().Pin(page, true));
  options_.index_bytes = 300;
  absl::Status refused;
  for (uint64_t key = 3000; refused.ok() && key < 3100; ++key) {
    const PrfPage page{.key = key, .sizes = {24}};
    refused = store_->Put(page.ToStore(Ack::kProcess)).status();
    if (!refused.ok()) break;
    ASSERT_OK(store_->residency().Pin(page.name(), true));
  }
  EXPECT_THAT(refused, HasCode(absl::StatusCode::kResourceExhausted));
  for (const PageName& page : pages) EXPECT_OK(store_->residency().Find(page).status());
}

TEST_F(BadInputTest, AHundredThousandPagesOfOneToken) {
  constexpr uint64_t kPages = 100'000;
  Open(0, 1 << 20, 2 << 20);
  const SharedBytes body = SharedBytes::Take(std::string(40, 'x'));
  const SegmentFacts facts{.bytes = 40, .gain = 1, .digest = Xxh3(body.span())};
  std::mt19937_64 random(1);
  for (uint64_t n = 0; n < kPages; ++n) {
    PageToStore page{.name = {.space = 1, .key = absl::StrCat(n)}};
    page.raw_bytes = 400;
    page.first_position = n % 1000;
    page.tokens = 1;
    if (n % 1000 != 0) page.parent_key = absl::StrCat(n - 1);
    page.facts = {facts};
    page.bodies = {body};
    ASSERT_OK(store_->Put(std::move(page)).status());
    if (n % 10'000 == 0) {
      EXPECT_OK(store_->residency().CheckInvariants());
    }
  }
  ExpectBudgetsHold();
  const StoreUsage usage = store_->residency().Usage();
  EXPECT_EQ(usage.tiers[1].encoded_bytes, 40 * usage.tiers[1].segments);
  EXPECT_EQ(usage.tiers[2].encoded_bytes, 40 * usage.tiers[2].segments);
  EXPECT_GT(usage.pages, (1 << 20) / 40);
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 0));
  ASSERT_OK(store_->cooling().Shrink(TierId::kDisk, 0));
  EXPECT_EQ(store_->residency().Usage().pages, 0u);
  EXPECT_EQ(store_->residency().Usage().encoded_bytes, 0u);
}

TEST_F(BadInputTest, ParentsThatCannotBeAreIgnored) {
  Open(0, 10 * kPage, 0);
  ASSERT_OK(Put({.key = 1, .parent = 1}).status()) << "its own";
  ASSERT_OK(Put({.key = 2, .parent = 3}).status()) << "a circle of two";
  ASSERT_OK(Put({.key = 3, .parent = 2}).status());
  ASSERT_OK(Put({.key = 9, .parent = 2}).status()) << "far away";
  PageToStore page = PrfPage{.key = 20}.ToStore();
  page.parent_key = std::string(100, 'p');
  EXPECT_THAT(store_->Put(page).status(), HasCode(StatusCode::kInvalidArgument));
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 0));
  EXPECT_EQ(store_->residency().Usage().pages, 0u);
}

}  // namespace
}  // namespace kvstow
