// Tenants of a store: shares by weight, guarantees that a flood cannot break, limits that cost
// their own tenant alone, and sums that are exact.
#include "storage/store/residency/tenants.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "absl/strings/numbers.h"
#include "tests/storage/disk/fake_disk.h"
#include "tests/storage/store/hot_pages.h"
#include "tests/storage/store/store_fixture.h"

namespace kvstow {
namespace {

constexpr size_t kHost = 1, kDisk = 2;

class TenantsTest : public StoreTest {
 protected:
  // Space 10 + N belongs to tenant N.
  static constexpr SpaceId SpaceOf(TenantId tenant) { return 10 + tenant; }
  static PrfPage PageOf(TenantId tenant, uint64_t key, uint32_t bytes = 1000) {
    return {.key = key, .sizes = {bytes}, .space = SpaceOf(tenant)};
  }

  void Wrap(TieredStoreParts& parts) override {
    if (options_.budget_bytes[kDisk] == 0) return;
    parts.tiers[kDisk] = disk_->NewTier();
    parts.catalog = disk_->NewCatalog();
  }
  void OpenFor(TenantId tenants, uint64_t gpu, uint64_t host, uint64_t disk) {
    options_.tenant_of = [](const std::string& name) {
      TenantId id = 0;
      return absl::SimpleAtoi(name, &id) ? id : kOnlyTenant;
    };
    Open(gpu, host, disk);
    for (TenantId tenant = 1; tenant <= tenants; ++tenant) {
      ASSERT_OK(store_->SaveSpace({.id = SpaceOf(tenant),
                                   .bytes = SharedBytes::Take(std::string("space")),
                                   .tenant = absl::StrCat(tenant)}));
    }
  }
  void Share(TenantId tenant, const TenantShare& share) {
    const std::pair<TenantId, TenantShare> shares[] = {{tenant, share}};
    store_->cooling().SetShares(shares);
  }
  absl::Status PutOf(TenantId tenant, uint64_t key, uint32_t bytes = 1000) {
    return store_->Put(PageOf(tenant, key, bytes).ToStore()).status();
  }
  uint64_t BytesOf(TenantId tenant, size_t tier) {
    const auto usage = store_->residency().UsageByTenant();
    return tenant < usage.size() ? usage[tenant].tiers[tier].encoded_bytes : 0;
  }
  uint64_t PagesOf(TenantId tenant) {
    const auto usage = store_->residency().UsageByTenant();
    return tenant < usage.size() ? usage[tenant].pages : 0;
  }
  LeaseId LeaseOf(TenantId tenant, uint64_t key) {
    const std::string name = PageOf(tenant, key).name().key;
    const absl::string_view keys[] = {name};
    return store_->residency().Lookup(SpaceOf(tenant), keys, true).lease;
  }

  std::unique_ptr<FakeDisk> disk_ = std::make_unique<FakeDisk>();
};

TEST_F(TenantsTest, ASpaceThatIsGoneIsNobodysAnyMore) {
  OpenFor(2, 0, 100'000, 100'000);
  Share(1, {.pages = 7});
  ASSERT_OK(PutOf(1, 1));
  EXPECT_EQ(store_->cooling().ShareOf(SpaceOf(1)).pages, 7u);
  ASSERT_OK(store_->DropSpace(SpaceOf(1)));
  EXPECT_EQ(store_->cooling().ShareOf(SpaceOf(1)).pages, 0u);
  EXPECT_EQ(PagesOf(1), 0u);
}

TEST_F(TenantsTest, UsageIsCountedByTenant) {
  OpenFor(2, 0, 50'000, 0);
  for (uint64_t key = 1; key <= 5; ++key) ASSERT_OK(PutOf(1, key));
  for (uint64_t key = 1; key <= 3; ++key) ASSERT_OK(PutOf(2, key, 2000));
  ASSERT_OK(store_->Delete(PageOf(2, 3).name(), false));
  EXPECT_EQ(PagesOf(1), 5u);
  EXPECT_EQ(PagesOf(2), 2u);
  EXPECT_EQ(BytesOf(1, kHost) + BytesOf(2, kHost), Bytes(TierId::kHost));
  EXPECT_EQ(BytesOf(1, kHost), store_->residency().Usage(SpaceOf(1)).tiers[kHost].encoded_bytes);
}

TEST_F(TenantsTest, RecoveredPagesAreTheirTenants) {
  PageRecord page{.number = 7, .name = {.space = SpaceOf(3), .key = "k"}, .tokens = 16};
  page.facts.push_back({.bytes = 500});
  LoadedRecords loaded{.spaces = {{.id = SpaceOf(3), .bytes = {}, .tenant = "three"}},
                       .pages = {page}};
  options_.budget_bytes = {0, 0, 10'000};
  options_.tenant_of = [](const std::string& name) -> TenantId { return name == "three" ? 3 : 0; };
  Residency residency(options_, **FindEvictionPolicy("lru"), std::move(loaded));
  const auto usage = residency.UsageByTenant();
  ASSERT_EQ(usage.size(), 4u);
  EXPECT_EQ(usage[3].tiers[kDisk].encoded_bytes, 500u);
  EXPECT_EQ(usage[0].pages, 0u);
  EXPECT_OK(residency.CheckInvariants());
}

TEST_F(TenantsTest, WeightsShareWhatIsLeft) {
  OpenFor(3, 0, 100'000, 0);
  Share(1, {.weight = 1});
  Share(2, {.weight = 3});
  Share(3, {.guarantee = {0, 20'000, 0}, .weight = 1});
  for (uint64_t key = 1; key <= 20; ++key) ASSERT_OK(PutOf(3, key, 980));
  const uint64_t of_third = BytesOf(3, kHost);
  ASSERT_LE(of_third, 20'000u);
  // The first tries ten times as hard as the second.
  for (uint64_t key = 1; key <= 4000; ++key) {
    ASSERT_OK(PutOf(1, key, 980));
    if (key % 10 == 0) {
      ASSERT_OK(PutOf(2, key, 980));
    }
  }
  ASSERT_OK(store_->residency().CheckInvariants());
  EXPECT_EQ(BytesOf(3, kHost), of_third) << "it was within its guarantee";
  const auto left = static_cast<double>(options_.budget_bytes[kHost] - of_third);
  EXPECT_NEAR(static_cast<double>(BytesOf(1, kHost)), left / 4, 1100);
  EXPECT_NEAR(static_cast<double>(BytesOf(2, kHost)), left * 3 / 4, 1100);
}

TEST_F(TenantsTest, WhatOneDoesNotWantIsTheOthers) {
  OpenFor(2, 0, 100'000, 0);
  Share(1, {.weight = 1});
  Share(2, {.weight = 9});
  for (uint64_t key = 1; key <= 10; ++key) ASSERT_OK(PutOf(2, key));
  for (uint64_t key = 1; key <= 500; ++key) ASSERT_OK(PutOf(1, key));
  EXPECT_EQ(PagesOf(2), 10u);
  EXPECT_GT(BytesOf(1, kHost), 85'000u);
}

TEST_F(TenantsTest, AFloodBreaksNoGuaranteeInAnyTier) {
  OpenFor(3, 20'000, 50'000, 100'000);
  Share(1, {.guarantee = {5'000, 20'000, 30'000}});
  for (uint64_t key = 1; key <= 60; ++key) ASSERT_OK(PutOf(1, key));
  std::array<uint64_t, kTiers> least;
  const TierBytes guarantee = store_->residency().ShareOf(1).guarantee;
  for (size_t t = 0; t < kTiers; ++t) least[t] = std::min(guarantee[t], BytesOf(1, t));
  EXPECT_GT(least[kHost], 15'000u);
  for (uint64_t key = 1; key <= 2000; ++key) {
    ASSERT_OK(PutOf(2 + key % 2, key, 700 + key % 500));
    if (key % 7 == 0) store_->cooling().RunDemotion();
    for (size_t t = 0; t < kTiers; ++t) ASSERT_GE(BytesOf(1, t), least[t]) << key << " in " << t;
  }
  EXPECT_OK(store_->residency().CheckInvariants());
}

TEST_F(TenantsTest, ALimitCostsItsOwnTenantAlone) {
  OpenFor(2, 0, 60'000, 40'000);
  Share(1, {.limit = {0, 10'000, 5'000}});
  for (uint64_t key = 1; key <= 20; ++key) ASSERT_OK(PutOf(2, key));
  for (uint64_t key = 1; key <= 100; ++key) {
    ASSERT_OK(PutOf(1, key));
    ASSERT_LE(BytesOf(1, kHost), 10'000u);
    ASSERT_LE(BytesOf(1, kDisk), 5'000u);
  }
  EXPECT_EQ(PagesOf(2), 20u);
  EXPECT_EQ(BytesOf(2, kDisk), 0u);
  EXPECT_GT(BytesOf(1, kHost), 8'000u);
  EXPECT_GT(BytesOf(1, kDisk), 3'000u) << "what is over the limit in memory cools";
  const absl::Status refused = PutOf(1, 1000, 12'000);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("the tenant's limit"));
}

TEST_F(TenantsTest, AFullLimitIsNamed) {
  OpenFor(2, 0, 60'000, 0);
  Share(1, {.limit = {0, 3'000, 0}});
  for (uint64_t key = 1; key <= 2; ++key) ASSERT_OK(PutOf(1, key));
  for (uint64_t key = 1; key <= 2; ++key) ASSERT_NE(LeaseOf(1, key), 0u);
  const absl::Status refused = PutOf(1, 3, 1500);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("the tenant may hold"));
  EXPECT_OK(PutOf(2, 1));
  EXPECT_EQ(PagesOf(1), 2u);
}

TEST_F(TenantsTest, ALimitBelowUseEvictsDown) {
  OpenFor(2, 0, 100'000, 0);
  for (uint64_t key = 1; key <= 30; ++key) ASSERT_OK(PutOf(1, key));
  for (uint64_t key = 1; key <= 30; ++key) ASSERT_OK(PutOf(2, key));
  std::vector<LeaseId> leases;
  for (uint64_t key = 1; key <= 20; ++key) leases.push_back(LeaseOf(1, key));
  Share(1, {.limit = {0, 5'000, 0}});
  EXPECT_EQ(PagesOf(1), 20u) << "the leased ones stay";
  EXPECT_EQ(PagesOf(2), 30u);
  ASSERT_OK(store_->residency().CheckInvariants());
  for (const LeaseId lease : leases) ASSERT_TRUE(store_->residency().Release(lease));
  store_->cooling().RunDemotion();
  EXPECT_LE(BytesOf(1, kHost), 5'000u);
  EXPECT_GT(PagesOf(1), 2u);
  EXPECT_EQ(PagesOf(2), 30u);
}

TEST_F(TenantsTest, APageLimitIsExact) {
  OpenFor(2, 0, 100'000, 0);
  for (uint64_t key = 1; key <= 9; ++key) ASSERT_OK(PutOf(1, key));
  Share(1, {.pages = 4});
  EXPECT_EQ(PagesOf(1), 4u);
  for (uint64_t key = 11; key <= 40; ++key) {
    ASSERT_OK(PutOf(1, key));
    ASSERT_OK(PutOf(2, key));
    ASSERT_EQ(PagesOf(1), 4u);
  }
  EXPECT_EQ(PagesOf(2), 30u);
  for (const PageName& name : store_->residency().Pages(SpaceOf(1))) {
    ASSERT_OK(store_->residency().Pin(name, true));
  }
  const absl::Status refused = PutOf(1, 50);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("may have 4 pages"));
}

TEST_F(TenantsTest, GuaranteesBeyondTheTierCountInProportion) {
  OpenFor(2, 0, 100'000, 0);
  Share(1, {.guarantee = {0, 120'000, 0}});
  Share(2, {.guarantee = {0, 60'000, 0}});
  for (uint64_t key = 1; key <= 300; ++key) {
    ASSERT_OK(PutOf(1, key));
    ASSERT_OK(PutOf(2, key));
  }
  EXPECT_GE(BytesOf(1, kHost), 58'000u);  // of 60,000, to a page
  EXPECT_GE(BytesOf(2, kHost), 28'000u);
}

TEST_F(TenantsTest, AnOperatorEmptiesATierInSpiteOfGuarantees) {
  OpenFor(1, 0, 100'000, 0);
  Share(1, {.guarantee = {0, 50'000, 0}});
  for (uint64_t key = 1; key <= 20; ++key) ASSERT_OK(PutOf(1, key));
  EXPECT_OK(store_->cooling().Shrink(TierId::kHost, 0));
  EXPECT_EQ(PagesOf(1), 0u);
}

TEST_F(TenantsTest, TheIndexIsSharedToo) {
  options_.index_bytes = 50 * 240;
  OpenFor(2, 0, 1'000'000, 0);
  for (uint64_t key = 1; key <= 10; ++key) ASSERT_OK(PutOf(1, key));
  for (uint64_t key = 1; key <= 500; ++key) ASSERT_OK(PutOf(2, key, 30));
  EXPECT_EQ(PagesOf(1), 10u) << "small pages of another push it out of the index";
}

// The same with threads, hot pages and their cold forms, one by one or several at a time.
class HotTenantsTest : public TenantsTest, public testing::WithParamInterface<size_t> {};
INSTANTIATE_TEST_SUITE_P(Pages, HotTenantsTest, testing::Values(1, 8));

TEST_P(HotTenantsTest, ThreadsBreakNoGuarantee) {
  constexpr HotPages kPages{.least = 500, .step = 900, .cold = 200};
  OpenFor(4, 0, 60'000, 100'000);
  store_->cooling().SetColdForms(kPages.Batches(GetParam()));
  const TenantShare share{.guarantee = {0, 20'000, 30'000}};
  Share(1, share);
  for (uint64_t key = 1; key <= 60; ++key) ASSERT_OK(PutOf(1, key));
  std::array<uint64_t, kTiers> least;
  for (size_t t = 0; t < kTiers; ++t) least[t] = std::min(share.guarantee[t], BytesOf(1, t));
  std::vector<std::thread> threads;
  std::atomic<int> running = 3;
  for (TenantId tenant = 2; tenant <= 4; ++tenant) {
    threads.emplace_back([&, tenant] {
      for (uint64_t key = 1; key <= 500; ++key) {
        PrfPage page = kPages.Page(key, 1);
        page.space = SpaceOf(tenant);
        store_->Put(page.ToStore()).IgnoreError();
        if (key % 20 == 0) store_->cooling().RunDemotion();
      }
      --running;
    });
  }
  for (bool last = false; !last;) {
    last = running == 0;
    for (size_t t = 0; t < kTiers; ++t) EXPECT_GE(BytesOf(1, t), least[t]) << "in " << t;
    EXPECT_OK(store_->residency().CheckInvariants());
  }
  for (std::thread& thread : threads) thread.join();
}

// What goes, in order.
class Gone final : public StoreObserver {
 public:
  void Restart(size_t) override {}
  void PageCame(SpaceId, absl::string_view, uint32_t) override {}
  void PageWent(SpaceId, absl::string_view key) override { keys.emplace_back(key); }
  std::vector<std::string> keys;
};

// A store whose pages all belong to one tenant chooses as one that knows of no tenants.
TEST_F(TenantsTest, OneTenantChoosesAsNone) {
  std::vector<std::string> gone[2];
  for (const TenantId tenant : {0u, 1u}) {
    Gone observer;
    options_.observer = &observer;
    disk_ = std::make_unique<FakeDisk>();
    OpenFor(1, 0, 40'000, 60'000);
    std::mt19937_64 random(7);
    for (int i = 0; i < 3000; ++i) {
      const uint64_t key = 1 + random() % 200;
      PrfPage page = PageOf(tenant, key, 300 + static_cast<uint32_t>(key % 9) * 100);
      page.sizes.push_back(200);
      if (tenant == 0) page.space = 1;
      if (random() % 3 == 0) {
        const std::string name = page.name().key;
        const absl::string_view keys[] = {name};
        store_->residency().Release(store_->residency().Lookup(page.space, keys, true).lease);
      } else {
        ASSERT_OK(store_->Put(page.ToStore()).status());
      }
      if (i % 50 == 0) store_->cooling().RunDemotion();
    }
    gone[tenant] = observer.keys;
    store_.reset();
  }
  EXPECT_GT(gone[0].size(), 500u);
  EXPECT_EQ(gone[0], gone[1]);
}

// Random calls of several tenants. After each, whatever it was: sums are exact, limits hold, and no
// tenant has less than its guarantee, or than it had, but for its own doing.
class RandomTenantsTest : public TenantsTest, public testing::WithParamInterface<uint64_t> {
 protected:
  static constexpr TenantId kTenants = 4;

  TenantShare RandomShare() {
    TenantShare share{.weight = static_cast<double>(1 + random_() % 5)};
    for (size_t t = 0; t < kTiers; ++t) {
      const uint64_t part = options_.budget_bytes[t] / 5;
      if (random_() % 2 == 0) share.guarantee[t] = random_() % part;
      if (random_() % 3 == 0) share.limit[t] = share.guarantee[t] + 3000 + random_() % part;
    }
    if (random_() % 4 == 0) share.pages = 5 + random_() % 40;
    return share;
  }
  // Returns the tenant whose doing it was; 0 = the store's own.
  TenantId Step() {
    const auto tenant = static_cast<TenantId>(1 + random_() % kTenants);
    const uint64_t key = 1 + random_() % 80;
    switch (random_() % 16) {
      case 0:
        store_->Delete(PageOf(tenant, key).name(), random_() % 2 == 0).IgnoreError();
        return tenant;
      case 1:
        store_->residency().Pin(PageOf(tenant, key).name(), random_() % 5 == 0).IgnoreError();
        return tenant;
      case 2: {
        const LeaseId lease = LeaseOf(tenant, key);
        if (random_() % 3 != 0) store_->residency().Release(lease);
        return tenant;
      }
      case 3:
        clock_.Advance(std::chrono::seconds(1));
        store_->cooling().RunDemotion();
        return 0;
      case 4:
        if (random_() % 4 != 0) return 0;
        shares_[tenant] = RandomShare();
        Share(tenant, shares_[tenant]);
        return tenant;
      default: {
        PrfPage page = PageOf(tenant, key, 200 + static_cast<uint32_t>(random_() % 1500));
        if (random_() % 2 == 0) page.sizes.push_back(300);
        page.whole = random_() % 4 == 0;
        page.version = 1 + random_() % 3;
        store_->Put(page.ToStore(random_() % 6 == 0 ? Ack::kProcess : Ack::kMemory)).IgnoreError();
        return tenant;
      }
    }
  }
  void ExpectGuarantees(const std::vector<StoreUsage>& before, TenantId by) {
    const auto after = store_->residency().UsageByTenant();
    for (TenantId tenant = 1; tenant < before.size(); ++tenant) {
      if (tenant == by || IsOverLimit(tenant, before[tenant])) continue;
      for (size_t t = 0; t < kTiers; ++t) {
        const uint64_t least =
            std::min(before[tenant].tiers[t].encoded_bytes, shares_[tenant].guarantee[t]);
        ASSERT_GE(after[tenant].tiers[t].encoded_bytes, least)
            << "tenant " << tenant << " in " << TierName(static_cast<TierId>(t)) << " by " << by;
      }
    }
  }
  // What leases held back may go in the background.
  bool IsOverLimit(TenantId tenant, const StoreUsage& usage) const {
    const TenantShare& share = shares_.at(tenant);
    for (size_t t = 0; t < kTiers; ++t) {
      if (share.limit[t] > 0 && usage.tiers[t].encoded_bytes > share.limit[t]) return true;
    }
    return share.pages > 0 && usage.pages > share.pages;
  }

  std::mt19937_64 random_{GetParam()};
  std::map<TenantId, TenantShare> shares_;
};

TEST_P(RandomTenantsTest, GuaranteesAndLimitsHold) {
  OpenFor(kTenants, 10'000, 30'000, 60'000);
  for (TenantId tenant = 1; tenant <= kTenants; ++tenant) {
    shares_[tenant] = RandomShare();
    Share(tenant, shares_[tenant]);
  }
  for (int step = 0; step < 3000; ++step) {
    const auto before = store_->residency().UsageByTenant();
    const TenantId by = Step();
    ASSERT_OK(store_->residency().CheckInvariants()) << "step " << step;
    ExpectGuarantees(before, by);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(store_->residency().Counters().dropped_pages, 100u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomTenantsTest, testing::Values(1, 2, 3, 4, 5, 6));

// The choice of who pays, against a plain model.
TEST(TenantsModelTest, TheHighestLevelPaysFirst) {
  std::mt19937_64 random(11);
  Tenants tenants({0, 1'000'000, 0});
  tenants.SetBudget(TierId::kHost, 1'000'000, 1);
  struct Row {
    double bytes = 0, guarantee = 0, weight = 1;
  };
  std::vector<Row> model(50);
  for (int step = 0; step < 5000; ++step) {
    const auto tenant = static_cast<TenantId>(random() % model.size());
    Row& row = model[tenant];
    if (random() % 10 == 0) {
      row.guarantee = static_cast<double>(random() % 5000);
      row.weight = static_cast<double>(1 + random() % 4);
      tenants.SetShare(tenant, {.guarantee = {0, static_cast<uint64_t>(row.guarantee), 0},
                                .weight = row.weight});
    }
    const uint64_t bytes = random() % 10'000;
    StoreUsage was, is;
    was.tiers[kHost].encoded_bytes = static_cast<uint64_t>(row.bytes);
    is.tiers[kHost].encoded_bytes = bytes;
    tenants.Count(tenant, was, ~uint64_t{0});
    tenants.Count(tenant, is, 1);
    tenants.Settle(tenant);
    row.bytes = static_cast<double>(bytes);
    ASSERT_OK(tenants.CheckInvariants());

    std::vector<TenantId> paid;
    tenants.VisitPayers({.resource = static_cast<int>(TierId::kHost)}, [&](TenantId payer) {
      paid.push_back(payer);
      return false;
    });
    const auto level = [&](TenantId id) {
      return (model[id].bytes - model[id].guarantee) / model[id].weight;
    };
    size_t above = 0;
    for (TenantId id = 0; id < model.size(); ++id) above += level(id) > 0 ? 1 : 0;
    if (tenants.size() < model.size()) continue;
    ASSERT_EQ(paid.size(), above);
    for (size_t i = 1; i < paid.size(); ++i) ASSERT_GE(level(paid[i - 1]), level(paid[i]));

    // The turn of the first ends when the others say so.
    Tenants::Payers payers{.resource = static_cast<int>(TierId::kHost), .bytes = random() % 3000};
    if (random() % 2 == 0) payers.wanting = static_cast<TenantId>(random() % model.size());
    payers.all = random() % 4 == 0;
    const auto first_of = [&](const Tenants& of) {
      std::optional<TenantId> first;
      of.VisitPayers(payers, [&](TenantId payer) {
        first = payer;
        return true;
      });
      return first;
    };
    const std::optional<TenantId> first = first_of(tenants);
    if (!first.has_value()) continue;
    was.tiers[kHost].encoded_bytes = static_cast<uint64_t>(model[*first].bytes);
    is = was;
    const uint64_t going = random() % (is.tiers[kHost].encoded_bytes + 1);
    is.tiers[kHost].encoded_bytes -= going;
    Tenants after = tenants;
    after.Count(*first, was, ~uint64_t{0});
    after.Count(*first, is, 1);
    after.Settle(*first);
    ASSERT_EQ(tenants.StaysFirst(payers, *first, going), first_of(after) == first) << step;
  }
}

}  // namespace
}  // namespace kvstow
