// Hot pages become their cold form: when, where, once, and whole or not at all.
#include "tests/storage/store/store_fixture.h"
#include "tests/storage/tiers/faulty_tier.h"

namespace kvstow {
namespace {

using absl::StatusCode;
using std::chrono::seconds;

class ColdFormTest : public StoreTest {
 protected:
  static constexpr uint64_t kHot = 3013, kCold = 1016;  // bytes of a page

  void OpenHot(uint64_t host, uint64_t disk) {
    Open(0, host, disk);
    SetColdForms();
  }
  void ReopenHot() {
    Reopen();
    SetColdForms();
  }
  void SetColdForms() {
    store_->cooling().SetMakeColdForm(
        [this](const PageName& name, const SharedBytes& header,
               std::span<const SharedBytes> bodies) -> std::optional<ColdForm> {
          const PrfPage hot{.key = std::stoull(name.key.substr(4)), .hot = true};
          EXPECT_EQ(AsString(header.span()), AsString(hot.ToStore().header.span()));
          EXPECT_EQ(bodies.size(), hot.sizes.size());
          for (size_t i = 0; i < bodies.size(); ++i) {
            EXPECT_EQ(hot.WhatIs(i, bodies[i].span()), "");
          }
          ++made_;
          if (while_making_) while_making_();
          if (cold_segment_ == 0) return std::nullopt;
          return Cold(hot.key).ToColdForm();
        });
  }
  PrfPage Cold(uint64_t key) const {
    return {.key = key, .version = 1001, .sizes = {cold_segment_, cold_segment_}};
  }
  void Wrap(TieredStoreParts& parts) override {
    if (parts.tiers[1] != nullptr) {
      parts.tiers[1] = std::make_unique<FaultyTier>(std::move(parts.tiers[1]), faults_[1]);
    }
    if (parts.tiers[2] == nullptr) return;
    parts.tiers[2] = std::make_unique<FaultyTier>(std::move(parts.tiers[2]), faults_[2]);
    parts.catalog = std::make_unique<FaultyCatalog>(std::move(parts.catalog), faults_[2]);
  }
  void PutHot(uint64_t key, Ack ack = Ack::kMemory) {
    ASSERT_OK(Put({.key = key, .hot = true}, ack).status()) << "key " << key;
    clock_.Advance(seconds(1));
  }
  // "hot" or "cold" with all of its bytes, "" for a miss.
  std::string Form(uint64_t key) {
    const auto facts = store_->residency().Find(PrfPage{.key = key}.name());
    if (!facts.ok()) return "";
    EXPECT_EQ(facts->raw_digest, PrfPage{.key = key}.raw_digest()) << "the content is the same";
    const bool cold = facts->segments.size() == 2;
    const PrfPage page = cold ? Cold(key) : PrfPage{.key = key, .hot = true};
    EXPECT_EQ(AsString(facts->header.span()), AsString(page.ToStore().header.span()));
    return ReadBack(page) != page.sizes.size() ? "damaged" : cold ? "cold" : "hot";
  }

  uint32_t cold_segment_ = 500;  // bytes of a segment of a cold form; 0 = there is no cold form
  int made_ = 0;
  std::function<void()> while_making_;
  std::array<Faults, kTiers> faults_;
};

TEST_F(ColdFormTest, HotPagesBecomeColdOldestFirstBeforeAnythingIsDemoted) {
  OpenHot(4 * kHot, 100 * kHot);
  for (uint64_t key = 1; key <= 4; ++key) PutHot(key);
  EXPECT_EQ(made_, 0) << "there is room";
  PutHot(5);
  EXPECT_EQ(Form(1), "cold");
  EXPECT_EQ(Form(5), "hot");
  for (uint64_t key = 6; key <= 9; ++key) PutHot(key);
  EXPECT_EQ(store_->residency().Counters().demoted_bytes, 0u);
  EXPECT_EQ(PagesIn(TierId::kHost), 9u);
  for (uint64_t key = 10; key <= 30; ++key) PutHot(key);
  EXPECT_GT(store_->residency().Counters().demoted_bytes, 0u);
  EXPECT_LE(Bytes(TierId::kHost), 4 * kHot);
  for (uint64_t key = 1; key <= 26; ++key) EXPECT_EQ(Form(key), "cold") << key;
  const StoreCounters counters = store_->residency().Counters();
  EXPECT_EQ(counters.cooled_pages, static_cast<uint64_t>(made_)) << "each once";
  EXPECT_EQ(counters.cooled_bytes, counters.cooled_pages * (kHot - kCold));
  EXPECT_EQ(counters.dropped_segments, 0u);
  EXPECT_EQ(store_->residency().Usage().pages, 30u);
}

TEST_F(ColdFormTest, ARoundOfDemotionCoolsToo) {
  options_.high_watermark = 0.8;
  options_.low_watermark = 0.5;
  OpenHot(10 * kHot, 100 * kHot);
  for (uint64_t key = 1; key <= 9; ++key) PutHot(key);
  store_->cooling().RunDemotion();
  EXPECT_LE(Bytes(TierId::kHost), 5 * kHot);
  EXPECT_EQ(PagesIn(TierId::kHost), 9u) << "smaller, and none left";
  EXPECT_EQ(Form(1), "cold");
  EXPECT_EQ(Form(9), "hot");
}

TEST_F(ColdFormTest, TheSecondPutOfTheContentFindsTheColdForm) {
  OpenHot(4 * kHot, 100 * kHot);
  PutHot(1, Ack::kProcess);
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 2 * kCold));
  ASSERT_EQ(Form(1), "cold");
  const auto again = Put({.key = 1, .hot = true}, Ack::kDurable);
  ASSERT_OK(again.status());
  EXPECT_EQ(*again, PutOutcome::kAlreadyThere);
  EXPECT_EQ(store_->residency().Find(PrfPage{.key = 1}.name())->ack, Ack::kDurable);
}

TEST_F(ColdFormTest, WhatWasAcknowledgedSurvivesARestartInEitherForm) {
  OpenHot(4 * kHot, 100 * kHot);
  PutHot(1, Ack::kProcess);
  PutHot(2, Ack::kProcess);
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, kHot + kCold));
  ASSERT_EQ(Form(1), "cold");
  ASSERT_EQ(Form(2), "hot");
  EXPECT_EQ(Bytes(TierId::kDisk), kHot + kCold) << "the hot form has left the disk too";
  ReopenHot();
  EXPECT_EQ(store_->residency().Counters().recovered_pages, 2u);
  EXPECT_EQ(Form(1), "cold");
  EXPECT_EQ(Form(2), "hot");
  // It is still hot: it gets its cold form where it is.
  ASSERT_OK(store_->cooling().Shrink(TierId::kDisk, 2 * kCold));
  EXPECT_EQ(Form(2), "cold");
  ReopenHot();
  EXPECT_EQ(Form(1), "cold");
  EXPECT_EQ(Form(2), "cold");
}

TEST_F(ColdFormTest, ACrashBeforeTheHotFormIsErasedLeavesTheColdOne) {
  OpenHot(4 * kHot, 100 * kHot);
  PutHot(1, Ack::kProcess);
  faults_[2].fail_erases = true;
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, kCold));
  EXPECT_EQ(Form(1), "cold");
  ReopenHot();
  faults_[2].fail_erases = false;
  EXPECT_EQ(store_->residency().Usage().pages, 1u);
  EXPECT_EQ(Form(1), "cold");
  ReopenHot();
  EXPECT_EQ(Bytes(TierId::kDisk), kCold);
}

TEST_F(ColdFormTest, ADeleteTakesTheHotFormAlongThatIsStillOnDisk) {
  OpenHot(4 * kHot, 100 * kHot);
  PutHot(1, Ack::kProcess);
  faults_[2].fail_erases = true;
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, kCold));
  EXPECT_EQ(Form(1), "cold");
  EXPECT_EQ(Bytes(TierId::kDisk), kHot);
  EXPECT_THAT(store_->Delete(PrfPage{.key = 1}.name(), false), HasCode(StatusCode::kUnavailable));
  faults_[2].fail_erases = false;
  EXPECT_THAT(store_->Delete(PrfPage{.key = 1}.name(), false), HasCode(StatusCode::kNotFound));
  ReopenHot();
  EXPECT_EQ(Form(1), "");
  EXPECT_EQ(Bytes(TierId::kDisk), 0u);
}

TEST_F(ColdFormTest, ACrashBeforeTheColdFormIsOnDiskLeavesTheHotOne) {
  OpenHot(4 * kHot, 100 * kHot);
  PutHot(1, Ack::kProcess);
  faults_[2].fail_writes = true;
  store_->cooling().Shrink(TierId::kHost, 2 * kCold).IgnoreError();  // the disk does not take it
  faults_[2].fail_writes = false;
  EXPECT_EQ(store_->residency().Counters().cooled_pages, 0u);
  ReopenHot();
  EXPECT_EQ(Form(1), "hot");
  ASSERT_OK(store_->cooling().Shrink(TierId::kDisk, 2 * kCold));
  EXPECT_EQ(Form(1), "cold");
}

TEST_F(ColdFormTest, LeasedAndPinnedPagesStayAsTheyAre) {
  OpenHot(4 * kHot, 0);
  for (uint64_t key = 1; key <= 3; ++key) PutHot(key);
  const LeaseId lease = Lease(1);
  ASSERT_OK(store_->residency().Pin(PrfPage{.key = 2}.name(), true));
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 2 * kHot + kCold));
  EXPECT_EQ(Form(1), "hot");
  EXPECT_EQ(Form(2), "hot");
  EXPECT_EQ(Form(3), "cold");
  ASSERT_TRUE(store_->residency().Release(lease));
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, kHot + 2 * kCold));
  EXPECT_EQ(Form(1), "cold");
  EXPECT_EQ(Form(2), "hot");
}

TEST_F(ColdFormTest, ALeaseThatIsTakenMeanwhileKeepsTheHotForm) {
  OpenHot(4 * kHot, 100 * kHot);
  PutHot(1, Ack::kProcess);
  while_making_ = [this] { EXPECT_NE(Lease(1), 0u); };
  store_->cooling().Shrink(TierId::kHost, 2 * kCold).IgnoreError();
  EXPECT_EQ(made_, 1);
  EXPECT_EQ(Form(1), "hot");
  EXPECT_EQ(Bytes(TierId::kDisk), kHot) << "nothing of the cold form is left";
  ReopenHot();
  EXPECT_EQ(Form(1), "hot");
}

TEST_F(ColdFormTest, AReaderOfTheHotFormMissesAndFindsTheColdOne) {
  OpenHot(4 * kHot, 0);
  PutHot(1);
  const auto before = store_->residency().Find(PrfPage{.key = 1}.name());
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 2 * kCold));
  const std::vector<uint16_t> indices = {0};
  const auto bodies = store_->Read(PrfPage{.key = 1}.name(), before->number, indices);
  EXPECT_THAT(bodies[0].status(), HasCode(StatusCode::kNotFound)) << "no bytes of another form";
  EXPECT_NE(store_->residency().Find(PrfPage{.key = 1}.name())->number, before->number);
}

TEST_F(ColdFormTest, WithoutAColdFormThatIsSmallerItCoolsLikeAnyOther) {
  for (const uint32_t segment : {0u, 2000u}) {
    cold_segment_ = segment;
    OpenHot(2 * kHot + 100, 100 * kHot);
    const int before = made_;
    for (uint64_t key = 1; key <= 6; ++key) PutHot(segment / 50 + key);
    EXPECT_EQ(made_ - before, 4) << "asked for once each";
    EXPECT_EQ(store_->residency().Counters().cooled_pages, 0u);
    EXPECT_GT(store_->residency().Counters().demoted_bytes, 0u);
    for (uint64_t key = 1; key <= 6; ++key) EXPECT_EQ(Form(segment / 50 + key), "hot");
    store_.reset();
  }
}

TEST_F(ColdFormTest, ADamagedHotPageIsDroppedAndNotCooled) {
  OpenHot(4 * kHot, 0);
  PutHot(1);
  PutHot(2);
  faults_[1].damage_reads = true;
  store_->cooling().Shrink(TierId::kHost, kHot).IgnoreError();
  faults_[1].damage_reads = false;
  EXPECT_EQ(made_, 0);
  EXPECT_EQ(Form(1), "");
  EXPECT_GT(store_->residency().Counters().corrupt_segments, 0u);
}

}  // namespace
}  // namespace kvstow
