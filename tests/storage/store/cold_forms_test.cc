// Several hot pages become their cold forms in one call: which go together, how many, and that each
// is by itself all the same.
#include <algorithm>
#include <functional>

#include "tests/storage/store/store_fixture.h"
#include "tests/storage/tiers/faulty_tier.h"

namespace kvstow {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ColdFormsTest : public StoreTest {
 protected:
  static constexpr uint64_t kHot = 3020, kCold = 1020;  // bytes of a page, at most
  using Keys = std::vector<uint64_t>;

  // A store without a disk. Space 10 + N belongs to tenant N, 1 to nobody.
  void OpenFor(uint64_t pages, TenantId tenants = 0) {
    options_.tenant_of = [](const std::string& name) {
      return name.empty() ? kOnlyTenant : static_cast<TenantId>(std::stoul(name));
    };
    Open(0, pages * kHot, 0);
    for (TenantId tenant = 1; tenant <= tenants; ++tenant) {
      ASSERT_OK(store_->SaveSpace({.id = 10 + tenant,
                                   .bytes = SharedBytes::Take(std::string("space")),
                                   .tenant = absl::StrCat(tenant)}));
    }
    store_->cooling().SetColdForms({.make = [this](auto pages) { return Make(pages); },
                                    .together = [this](SpaceId) { return together_; },
                                    .most_pages = most_pages_,
                                    .most_bytes = most_bytes_});
  }
  std::vector<std::optional<ColdForm>> Make(std::span<const HotForm> pages) {
    std::vector<std::optional<ColdForm>> out;
    Keys& call = calls_.emplace_back();
    for (const HotForm& page : pages) {
      const PrfPage hot = HotOf(std::stoull(page.name.key.substr(4)), page.name.space);
      EXPECT_EQ(AsString(page.header.span()), AsString(hot.ToStore().header.span()));
      EXPECT_EQ(page.bodies.size(), hot.sizes.size());
      for (size_t i = 0; i < page.bodies.size(); ++i) {
        EXPECT_EQ(hot.WhatIs(i, page.bodies[i].span()), "");
      }
      call.push_back(hot.key);
      out.emplace_back();
      if (hot.key != without_) out.back() = ColdOf(hot.key, page.name.space).ToColdForm();
    }
    if (while_making_) while_making_();
    return out;
  }
  static PrfPage HotOf(uint64_t key, SpaceId space = 1) {
    return {.key = key, .space = space, .hot = true};
  }
  static PrfPage ColdOf(uint64_t key, SpaceId space = 1) {
    return {.key = key, .version = 1001, .sizes = {500, 500}, .space = space};
  }
  void Wrap(TieredStoreParts& parts) override {
    parts.tiers[1] = std::make_unique<FaultyTier>(std::move(parts.tiers[1]), faults_);
  }
  void PutHot(uint64_t first, uint64_t last, SpaceId space = 1) {
    for (uint64_t key = first; key <= last; ++key) {
      ASSERT_OK(Put(HotOf(key, space)).status()) << "key " << key;
      clock_.Advance(std::chrono::seconds(1));
    }
  }
  // "hot" or "cold" with all of its bytes, "" for a miss.
  std::string Form(uint64_t key, SpaceId space = 1) {
    const auto facts = store_->residency().Find(HotOf(key, space).name());
    if (!facts.ok()) return "";
    const bool cold = facts->segments.size() == 2;
    const PrfPage page = cold ? ColdOf(key, space) : HotOf(key, space);
    return ReadBack(page) != page.sizes.size() ? "damaged" : cold ? "cold" : "hot";
  }

  size_t most_pages_ = 4;
  uint64_t most_bytes_ = UINT64_MAX;
  std::vector<SpaceId> together_ = {1};
  uint64_t without_ = 0;  // key of a page that has no cold form
  std::function<void()> while_making_;
  std::vector<Keys> calls_;
  Faults faults_;
};

TEST_F(ColdFormsTest, ACallHasThePagesThatAreNextAndNoMoreThanItTakes) {
  options_.low_watermark = 0.5;
  OpenFor(10);
  PutHot(1, 10);
  EXPECT_THAT(calls_, IsEmpty()) << "there is room";
  PutHot(11, 11);
  EXPECT_THAT(calls_, ElementsAre(Keys{1, 2, 3, 4}));
  for (uint64_t key = 1; key <= 11; ++key) EXPECT_EQ(Form(key), key <= 4 ? "cold" : "hot") << key;
  EXPECT_EQ(store_->residency().Counters().cooled_pages, 4u);
}

TEST_F(ColdFormsTest, NoMorePagesBecomeColdThanTheLowWatermarkWants) {
  most_pages_ = 64;
  options_.low_watermark = 0.75;
  OpenFor(10);
  PutHot(1, 11);
  // Without three of eleven there is less than three quarters of ten.
  EXPECT_THAT(calls_, ElementsAre(Keys{1, 2, 3, 4}));
  calls_.clear();
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 3 * kHot + 8 * kCold));
  for (const Keys& call : calls_) EXPECT_LE(call.size(), 6u);
  EXPECT_EQ(Form(11), "hot");
}

TEST_F(ColdFormsTest, TheBytesOfACallAreBounded) {
  options_.low_watermark = 0.1;
  most_bytes_ = 2 * kHot;
  OpenFor(10);
  PutHot(1, 11);
  EXPECT_THAT(calls_, ElementsAre(Keys{1, 2}));
}

TEST_F(ColdFormsTest, PagesOfOtherSpacesStayOut) {
  options_.low_watermark = 0.1;
  for (const bool alone : {false, true}) {
    if (alone) together_ = {};
    OpenFor(10, 1);
    ASSERT_OK(store_->SaveSpace({.id = 2, .bytes = SharedBytes::Take(std::string("space"))}));
    PutHot(1, 2);
    PutHot(3, 8, 2);
    PutHot(9, 11);
    if (alone) {
      EXPECT_THAT(calls_, ElementsAre(Keys{1}, Keys{2})) << "no space goes with it";
    } else {
      EXPECT_THAT(calls_, ElementsAre(Keys{1, 2, 9, 10}));
      EXPECT_EQ(Form(3, 2), "hot");
    }
    calls_.clear();
    store_.reset();
  }
}

TEST_F(ColdFormsTest, OnePageThatCannotKeepsNoOtherFromIt) {
  options_.low_watermark = 0.5;
  without_ = 2;
  OpenFor(10);
  while_making_ = [this] {
    EXPECT_NE(Lease(3), 0u);
    while_making_ = nullptr;
  };
  PutHot(1, 11);
  EXPECT_THAT(calls_, ElementsAre(Keys{1, 2, 3, 4}));
  EXPECT_EQ(Form(1), "cold");
  EXPECT_EQ(Form(2), "hot") << "it has no cold form";
  EXPECT_EQ(Form(3), "hot") << "it was leased meanwhile";
  EXPECT_EQ(Form(4), "cold");
  calls_.clear();
  PutHot(12, 16);
  for (const Keys& call : calls_) {
    for (const uint64_t key : {2u, 3u}) EXPECT_EQ(std::ranges::count(call, key), 0) << key;
  }
}

TEST_F(ColdFormsTest, WhereNoneGetsColdOthersLeave) {
  options_.low_watermark = 0.5;
  OpenFor(4);
  store_->cooling().SetColdForms(
      {.make = [](auto pages) { return std::vector<std::optional<ColdForm>>(pages.size()); },
       .together = [this](SpaceId) { return together_; },
       .most_pages = 3});
  PutHot(1, 8);
  EXPECT_EQ(Form(8), "hot");
  EXPECT_LE(Bytes(TierId::kHost), 4 * kHot);
}

TEST_F(ColdFormsTest, DamagedPagesAreDroppedAndNotCooled) {
  options_.low_watermark = 0.5;
  OpenFor(10);
  PutHot(1, 10);
  faults_.damage_reads = true;
  store_->cooling().Shrink(TierId::kHost, 5 * kHot).IgnoreError();
  faults_.damage_reads = false;
  EXPECT_THAT(calls_, IsEmpty());
  EXPECT_EQ(Form(1), "");
  EXPECT_EQ(Form(10), "hot");
}

// The tenant that holds most pays, until it holds as much as the next.
TEST_F(ColdFormsTest, TenantsTakeTurnsAsIfPagesWentOneByOne) {
  options_.low_watermark = 0.2;
  most_pages_ = 64;
  together_ = {11, 12};
  OpenFor(12, 2);
  PutHot(1, 8, 11);
  PutHot(11, 14, 12);
  PutHot(15, 15, 12);
  ASSERT_FALSE(calls_.empty());
  for (const uint64_t key : calls_[0]) EXPECT_LE(key, 8u) << "the first tenant has more";
  EXPECT_EQ(calls_[0].size(), 3u) << "with five of eight it has no more than the second wants";
  for (uint64_t key = 11; key <= 15; ++key) EXPECT_EQ(Form(key, 12), "hot") << key;
}

TEST_F(ColdFormsTest, ATenantComesDownToItsLimitByItsOwnPages) {
  most_pages_ = 64;
  together_ = {11, 12};
  OpenFor(20, 2);
  PutHot(1, 8, 11);
  PutHot(11, 14, 12);
  const std::pair<TenantId, TenantShare> shares[] = {{1, {.limit = {0, 6 * kHot + 500, 0}}}};
  store_->cooling().SetShares(shares);
  EXPECT_THAT(calls_, ElementsAre(Keys{1, 2}, Keys{3}));
  for (uint64_t key = 11; key <= 14; ++key) EXPECT_EQ(Form(key, 12), "hot") << key;
}

}  // namespace
}  // namespace kvstow
