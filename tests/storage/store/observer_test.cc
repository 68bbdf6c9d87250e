// What an observer is told is what the store holds, in the order in which it came about.
#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "storage/store/residency/store_observer.h"
#include "tests/storage/disk/fake_disk.h"
#include "tests/storage/store/hot_pages.h"
#include "tests/storage/store/store_fixture.h"
#include "tests/storage/tiers/faulty_tier.h"

namespace kvstow {
namespace {

using Names = std::set<std::pair<SpaceId, std::string>>;

// Applies what it is told. The store's lock orders the calls; the mutex is for the test's reads.
class Mirror final : public StoreObserver {
 public:
  void Restart(size_t pages) override {
    MutexLock lock(mu_);
    pages_.clear();
    promised_ = pages;
  }
  void PageCame(SpaceId space, absl::string_view key, uint32_t tokens) override {
    MutexLock lock(mu_);
    wrong_ += pages_.emplace(space, key).second ? 0 : 1;
    ++came_;
    tokens_ = tokens;
  }
  void PageWent(SpaceId space, absl::string_view key) override {
    MutexLock lock(mu_);
    wrong_ += pages_.erase({space, std::string(key)}) == 1 ? 0 : 1;
    ++went_;
  }

  Names pages() const {
    MutexLock lock(mu_);
    return pages_;
  }

  // After everything has stopped.
  uint64_t came_ = 0, went_ = 0, wrong_ = 0, promised_ = 0;
  uint32_t tokens_ = 0;  // of the last page that came

 private:
  mutable Mutex mu_;
  Names pages_;
};

constexpr HotPages kPages{.least = 500, .step = 900, .cold = 200};

class ObserverTest : public StoreTest {
 protected:
  ObserverTest() { options_.observer = &mirror_; }
  ~ObserverTest() override { store_.reset(); }
  void Wrap(TieredStoreParts& parts) override {
    if (options_.budget_bytes[2] > 0 && fake_) {
      parts.tiers[2] = fake_disk_.NewTier();
      parts.catalog = fake_disk_.NewCatalog();
    }
    for (int t = 0; t < kTiers; ++t) {
      if (parts.tiers[t] == nullptr) continue;
      parts.tiers[t] = std::make_unique<FaultyTier>(std::move(parts.tiers[t]), faults_[t]);
    }
  }
  Names Stored() {
    Names names;
    for (const PageName& name : store_->residency().Pages(0)) names.emplace(name.space, name.key);
    return names;
  }
  void ExpectTold() {
    EXPECT_EQ(mirror_.pages(), Stored());
    EXPECT_EQ(mirror_.wrong_, 0u) << "a page came twice, or went that was not there";
  }

  bool fake_ = false;
  FakeDisk fake_disk_;
  std::array<Faults, kTiers> faults_;
  Mirror mirror_;
};

TEST_F(ObserverTest, APutIsTold) {
  Open(0, 100 * kKiB, 0);
  PageToStore page = PrfPage{.key = 2}.ToStore();
  page.tokens = 3;
  ASSERT_OK(store_->Put(std::move(page)).status());
  EXPECT_EQ(mirror_.pages(), (Names{{1, "key-2"}}));
  EXPECT_EQ(mirror_.tokens_, 3u);
}

TEST_F(ObserverTest, APutThatStoresNothingIsNotTold) {
  Open(0, 100 * kKiB, 0);
  ASSERT_OK(Put({.key = 1}).status());
  ASSERT_EQ(*Put({.key = 1}), PutOutcome::kAlreadyThere);
  ASSERT_EQ(*Put({.key = 1, .version = 2}), PutOutcome::kConflict);
  faults_[1].fail_writes = true;
  ASSERT_FALSE(Put({.key = 2}).ok());
  EXPECT_EQ(mirror_.came_, 1u);
}

TEST_F(ObserverTest, CoolingAndLosingATailIsNoNews) {
  Open(0, 100 * kKiB, 100 * kKiB);
  ASSERT_OK(Put({.key = 1}, Ack::kProcess).status());
  ASSERT_OK(store_->cooling().Shrink(TierId::kHost, 0));
  ASSERT_OK(store_->cooling().Shrink(TierId::kDisk, 1500));
  ASSERT_EQ(ReadBack({.key = 1}), 1u) << "its base is left";
  EXPECT_EQ(mirror_.came_, 1u);
  EXPECT_EQ(mirror_.went_, 0u);
}

TEST_F(ObserverTest, EveryWayToGoIsTold) {
  Open(0, 100 * kKiB, 100 * kKiB);
  for (uint64_t key = 1; key <= 4; ++key) ASSERT_OK(Put({.key = key, .whole = true}).status());
  ASSERT_OK(store_->Delete(PrfPage{.key = 1}.name(), false));
  EXPECT_EQ(mirror_.went_, 1u) << "deleted";
  const auto facts = store_->residency().Find(PrfPage{.key = 2}.name());
  ASSERT_OK(facts.status());
  ASSERT_OK(store_->Drop(PrfPage{.key = 2}.name(), facts->number));
  EXPECT_EQ(mirror_.went_, 2u) << "dropped";
  faults_[1].damage_reads = true;
  ReadUnchecked({.key = 3, .whole = true});
  faults_[1].damage_reads = false;
  EXPECT_EQ(mirror_.went_, 3u) << "damaged";
  ASSERT_OK(store_->DropSpace(1));
  EXPECT_EQ(mirror_.went_, 4u) << "its space was dropped";
  EXPECT_EQ(mirror_.pages(), Names());
}

TEST_F(ObserverTest, EvictionIsToldAndSoIsAFullIndex) {
  options_.index_bytes = 2000;
  Open(0, 20 * kKiB, 0);
  for (uint64_t key = 1; key <= 40; ++key) store_->Put(PrfPage{.key = key}.ToStore()).IgnoreError();
  EXPECT_GT(mirror_.went_, 20u);
  ExpectTold();
}

TEST_F(ObserverTest, WhatCameBackIsToldOnRequest) {
  Open(0, 100 * kKiB, 100 * kKiB);
  for (uint64_t key = 1; key <= 5; ++key) ASSERT_OK(Put({.key = key}, Ack::kProcess).status());
  Reopen();
  ASSERT_EQ(mirror_.came_, 5u) << "recovery tells nobody";
  store_->residency().TellPages(mirror_);
  EXPECT_EQ(mirror_.promised_, 5u);
  EXPECT_EQ(mirror_.came_, 10u);
  ExpectTold();
}

// Threads put, evict, delete, drop pages and spaces, and meet damage; now and then somebody asks
// for all pages anew. When they stop, what was told is what is stored.
class ObserverRandomTest : public ObserverTest {
 protected:
  PrfPage Page(uint64_t key, uint64_t version) const {
    PrfPage page = kPages.Page(key, version);
    page.space = space_;
    return page;
  }
  void Step(std::mt19937_64& random) {
    const PrfPage page = Page(1 + random() % 40, 1 + random() % 2);
    switch (random() % 12) {
      case 0:
        store_->Delete(page.name(), true).IgnoreError();
        break;
      case 1: {
        const auto facts = store_->residency().Find(page.name());
        if (facts.ok()) store_->Drop(page.name(), facts->number).IgnoreError();
        break;
      }
      case 2: {
        const std::string key = page.name().key;
        const absl::string_view keys[] = {key};
        const PrefixMatch match = store_->residency().Lookup(page.space, keys, true);
        if (random() % 4 != 0) store_->residency().Release(match.lease);
        clock_.Advance(std::chrono::milliseconds(100));
        break;
      }
      case 3:
        if (random() % 4 == 0)
          store_->cooling().Shrink(TierId::kHost, random() % 40'000).IgnoreError();
        break;
      case 4:
        faults_[random() % 3].damage_reads = random() % 8 == 0;
        faults_[random() % 2].fail_writes = random() % 8 == 0;
        break;
      case 5:
        ReadSome(page.name());
        break;
      case 6:
        if (random() % 16 == 0) DropSpaceAndMakeAnother();
        break;
      case 7:
        if (random() % 16 == 0) store_->residency().TellPages(mirror_);
        break;
      default:
        store_->Put(page.ToStore(static_cast<Ack>(random() % 8 == 0))).IgnoreError();
    }
  }
  void ReadSome(const PageName& name) {
    const auto facts = store_->residency().Find(name);
    if (!facts.ok()) return;
    const uint16_t first[] = {0};
    store_->Read(name, facts->number, first);
  }
  void DropSpaceAndMakeAnother() {
    const SpaceId old = space_;
    const SpaceId next = store_->residency().NewSpaceId();
    ASSERT_OK(store_->SaveSpace({.id = next, .bytes = SharedBytes::Take(std::string("space"))}));
    space_ = next;
    store_->DropSpace(old).IgnoreError();
  }

  std::atomic<SpaceId> space_ = 1;
};

TEST_F(ObserverRandomTest, ToldIsStoredWhateverHappens) {
  constexpr int kThreads = 4, kRounds = 3, kSteps = 1500;
  fake_ = true;  // instrumented, for ThreadSanitizer
  Open(0, 40 * kKiB, 80 * kKiB);
  for (int round = 0; round < kRounds; ++round) {
    store_->cooling().SetMakeColdForm(kPages.ColdForms());
    store_->residency().TellPages(mirror_);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(2026 + round * kThreads + t);
        for (int step = 0; step < kSteps; ++step) Step(random);
      });
    }
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) store_->cooling().RunDemotion();
    });
    for (std::thread& thread : threads) thread.join();
    ExpectTold();
    for (Faults& faults : faults_) faults.damage_reads = faults.fail_writes = false;
    OpenStore();
  }
  store_->residency().TellPages(mirror_);
  ExpectTold();
  EXPECT_GT(mirror_.went_, 500u);
}

}  // namespace
}  // namespace kvstow
