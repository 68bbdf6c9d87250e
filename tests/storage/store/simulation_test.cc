// A simulation of store, index and leases in one thread: clock, randomness and I/O are the test's,
// and every call is compared with a simple model.
//
// The model knows of each key which version is there, of each lease what it promises and until
// when. It does not know what policy will drop: it checks that nothing is ever missing that is not
// among the store's dropped pages, that nothing comes back that was deleted, and that every byte
// is its page's.
//
//   KVSTOW_SIMULATION_SEED=N    starts at another seed; a failure prints the one that it had
//   KVSTOW_SIMULATION_READS=N   verified reads of a seed
#include <map>
#include <random>
#include <set>

#include "tests/storage/disk/fake_disk.h"
#include "tests/storage/number_from_env.h"
#include "tests/storage/store/hot_pages.h"
#include "tests/storage/store/store_fixture.h"
#include "tests/storage/tiers/faulty_tier.h"

namespace kvstow {
namespace {

constexpr uint64_t kKeys = 80, kVersions = 3;
constexpr HotPages kPages{.least = 100, .step = 200, .cold = 60};

class SimulationTest : public StoreTest, public testing::WithParamInterface<uint64_t> {
 protected:
  struct Known {
    uint64_t version = 0;         // the one that is there; 0 = none
    std::set<uint64_t> versions;  // all that ever were
    bool gone = false;            // a delete said so
  };
  struct Promise {
    Time end;
    std::map<uint64_t, size_t> segments;  // of each key
  };

  static PrfPage PageOf(uint64_t key, uint64_t version) { return kPages.Page(key, version); }
  void Wrap(TieredStoreParts& parts) override {
    parts.tiers[2] = fake_disk_.NewTier();
    parts.catalog = std::make_unique<FaultyCatalog>(fake_disk_.NewCatalog(), faults_[2]);
    for (int t = 0; t < kTiers; ++t) {
      parts.tiers[t] = std::make_unique<FaultyTier>(std::move(parts.tiers[t]), faults_[t]);
    }
  }
  void SetColdForms() {
    const size_t most = GetParam() % 2 == 0 ? 1 : 5;
    store_->cooling().SetColdForms(kPages.Batches(most));
  }

  uint64_t Random(uint64_t below) { return random_() % below; }
  bool Faulty() const {
    for (const Faults& f : faults_) {
      if (f.fail_writes || f.fail_erases || f.damage_reads || f.lose_reads) return true;
    }
    return false;
  }

  // What Find says, held against the model; 0 for a miss.
  uint64_t VersionThere(uint64_t key, const absl::StatusOr<PageFacts>& facts) {
    Known& known = model_[key];
    if (!facts.ok()) {
      if (known.version != 0) ++vanished_;
      return known.version = 0;
    }
    uint64_t version = 0;
    for (uint64_t v = 1; v <= kVersions; ++v) {
      if (facts->raw_digest == PageOf(key, v).raw_digest()) version = v;
    }
    EXPECT_TRUE(known.versions.contains(version)) << "key " << key << ": never stored";
    EXPECT_EQ(known.version, version) << "key " << key << " came back";
    return version;
  }
  uint64_t FindVersion(uint64_t key) {
    return VersionThere(key, store_->residency().Find(PageOf(key, 1).name()));
  }

  void Get(uint64_t key) {
    const PageName name = PageOf(key, 1).name();
    const auto facts = store_->residency().Find(name);
    const uint64_t version = VersionThere(key, facts);
    if (version == 0) return;
    const PrfPage page = kPages.Form(key, version, facts->header);
    std::vector<uint16_t> indices(facts->segments.size());
    std::iota(indices.begin(), indices.end(), 0);
    const auto bodies = store_->Read(name, facts->number, indices);
    for (size_t i = 0; i < bodies.size(); ++i) {
      if (!bodies[i].ok()) {
        EXPECT_TRUE(faulted_) << "key " << key << ": " << bodies[i].status();
        continue;
      }
      ++reads_;
      EXPECT_EQ(page.WhatIs(i, bodies[i]->span()), "");
    }
  }

  void Put(uint64_t key) {
    const uint64_t version = 1 + Random(kVersions), was = FindVersion(key);
    const auto ack = static_cast<Ack>(Random(8) < 5 ? 0 : 1 + Random(2));
    const auto put = store_->Put(PageOf(key, version).ToStore(ack));
    Known& known = model_[key];
    if (!put.ok()) {
      // What a failed put leaves is what was there: that may have proved damaged in it.
      EXPECT_TRUE(known.version != 0 || !store_->residency().Find(PageOf(key, 1).name()).ok())
          << key;
      return;
    }
    if (was != 0 && was != version) {
      EXPECT_EQ(*put, PutOutcome::kConflict) << key;
    } else if (was == version && !faulted_) {
      EXPECT_EQ(*put, PutOutcome::kAlreadyThere) << key;
    } else if (was == 0) {
      EXPECT_EQ(*put, PutOutcome::kStored) << key;
    }
    if (*put != PutOutcome::kStored) return;
    // One that was there and had to be stored again was dropped in between, as damaged.
    if (was != 0) ++vanished_;
    known.version = version;
    known.gone = false;
    known.versions.insert(version);
  }

  void LookUp(uint64_t first) {
    std::vector<std::string> keys;
    for (uint64_t k = first; k < first + 4; ++k) keys.push_back(PageOf(k, 1).name().key);
    const PrefixMatch match = store_->residency().Lookup(1, Views(keys), true);
    if (match.pages.empty()) return;
    Promise promise{.end = clock_.Now() + match.ttl, .segments = {}};
    for (size_t i = 0; i < match.pages.size() && !Faulty(); ++i) {
      promise.segments[first + i] = match.pages[i].segments;
    }
    EXPECT_TRUE(leases_.emplace(match.lease, std::move(promise)).second) << "a lease given twice";
  }
  // Renews or releases a lease of ours, which works exactly until it ends.
  void UseLease() {
    if (leases_.empty()) return;
    auto it = leases_.begin();
    std::advance(it, Random(leases_.size()));
    const bool active = it->second.end > clock_.Now();
    if (Random(2) == 0) {
      EXPECT_EQ(store_->residency().Renew(it->first), active);
      if (active) it->second.end = clock_.Now() + options_.lease_ttl;
    } else {
      EXPECT_EQ(store_->residency().Release(it->first), active);
      leases_.erase(it);
    }
  }
  // Leased pages are there, with all that they had.
  void CheckLeases() {
    std::erase_if(leases_, [&](const auto& l) { return l.second.end <= clock_.Now(); });
    for (const auto& [id, promise] : leases_) {
      for (const auto& [key, segments] : promise.segments) {
        const auto facts = store_->residency().Find(PageOf(key, 1).name());
        ASSERT_TRUE(facts.ok()) << "key " << key << " is leased and gone";
        EXPECT_EQ(facts->segments.size(), segments) << "key " << key << " is leased";
      }
    }
  }

  void Delete(uint64_t key) {
    const bool force = Random(2) == 0, there = FindVersion(key) != 0;
    const absl::Status deleted = store_->Delete(PageOf(key, 1).name(), force);
    // A disk that refused to erase what was there before says so.
    const bool refused = absl::IsUnavailable(deleted);
    EXPECT_TRUE(!refused || Faulty());
    EXPECT_TRUE(refused || absl::IsNotFound(deleted) == !there) << deleted;
    model_[key].gone = deleted.ok() || absl::IsNotFound(deleted);
    if (deleted.ok() || refused) {
      model_[key].version = 0;
      for (auto& [id, promise] : leases_) promise.segments.erase(key);
    } else if (there) {
      EXPECT_EQ(deleted.code(), absl::StatusCode::kFailedPrecondition) << deleted;
      EXPECT_FALSE(force);
    }
  }

  void SetFaults() {
    const bool on = Random(3) == 0;
    Faults& f = faults_[Random(kTiers)];
    f.fail_writes = on && Random(2) == 0;
    f.fail_erases = on && Random(2) == 0;
    f.damage_reads = on && Random(3) == 0;
    f.lose_reads = on && !f.damage_reads && Random(3) == 0;
    if (!Faulty()) return;
    faulted_ = true;
    // Damage is no exception to leases; what is left of the promises is that they end.
    for (auto& [id, promise] : leases_) promise.segments.clear();
  }

  void Restart() {
    for (Faults& f : faults_) f.fail_writes = f.fail_erases = f.damage_reads = f.lose_reads = false;
    std::map<uint64_t, size_t> safe;  // segments of keys that are all on disk
    for (uint64_t key = 1; key <= kKeys; ++key) {
      const auto facts = store_->residency().Find(PageOf(key, 1).name());
      if (VersionThere(key, facts) != 0 && facts->ack != Ack::kMemory) {
        safe[key] = facts->segments.size();
      }
    }
    CheckSums();
    dropped_before_ += store_->residency().Counters().dropped_pages;
    leases_.clear();
    Reopen();
    SetColdForms();
    for (uint64_t key = 1; key <= kKeys; ++key) {
      const auto facts = store_->residency().Find(PageOf(key, 1).name());
      Known& known = model_[key];
      if (const auto it = safe.find(key); it != safe.end()) {
        ASSERT_TRUE(facts.ok()) << "key " << key << " was on disk";
        // A disk that refused to erase may give back segments, or a cold form that was not taken.
        const size_t least =
            faulted_ ? std::min(it->second, kPages.Cold(key, 1).sizes.size()) : it->second;
        EXPECT_GE(facts->segments.size(), least) << "key " << key;
        EXPECT_TRUE(faulted_ || facts->segments.size() == it->second) << "key " << key;
      }
      if (!facts.ok()) known.version = 0;  // it was in memory
      EXPECT_FALSE(facts.ok() && known.gone) << "key " << key << " was deleted";
      // A disk that refused to erase may give back what left the index; never what was not stored.
      if (!facts.ok() || !faulted_) continue;
      for (const uint64_t v : known.versions) {
        if (facts->raw_digest == PageOf(key, v).raw_digest()) known.version = v;
      }
    }
    // What could not be erased counts again, and may be too much.
    if (faulted_) store_->cooling().RunDemotion();
    faulted_ = false;
    for (uint64_t key = 1; key <= kKeys; ++key) Get(key);
  }

  void CheckSums() {
    ExpectSumsAndBudgets();
    for (uint64_t key = 1; key <= kKeys; ++key) FindVersion(key);
    EXPECT_LE(vanished_, dropped_before_ + store_->residency().Counters().dropped_pages)
        << "pages vanished that were not dropped";
  }

  void Step() {
    const uint64_t key = 1 + Random(kKeys), dice = Random(400);
    if (dice < 60) return Put(key);
    if (dice < 80) return LookUp(key);
    if (dice < 100) return UseLease();
    if (dice < 110) return Delete(key);
    if (dice < 115)
      return store_->residency().Pin(PageOf(key, 1).name(), Random(4) == 0).IgnoreError();
    if (dice < 125) return clock_.Advance(std::chrono::milliseconds(Random(4000)));
    if (dice < 127) {
      return store_->cooling()
          .Shrink(static_cast<TierId>(Random(kTiers)), Random(40'000))
          .IgnoreError();
    }
    if (dice < 135) return store_->cooling().RunDemotion();
    if (dice < 137) return SetFaults();
    if (dice == 137) return CheckLeases();
    if (dice == 138) return CheckSums();
    if (dice == 139 && Random(4) == 0) return Restart();
    Get(key);
  }

  std::mt19937_64 random_;
  FakeDisk fake_disk_;
  std::array<Faults, kTiers> faults_;
  bool faulted_ = false;  // there were faults since the last start
  std::map<uint64_t, Known> model_;
  std::map<LeaseId, Promise> leases_;
  uint64_t reads_ = 0, vanished_ = 0, dropped_before_ = 0;
};

TEST_P(SimulationTest, AgreesWithTheModel) {
  const uint64_t seed = NumberFromEnv("KVSTOW_SIMULATION_SEED", 2026) + GetParam();
  const uint64_t reads = NumberFromEnv("KVSTOW_SIMULATION_READS", 20'000);
  random_.seed(seed);
  Open(8 * kKiB, 20 * kKiB, 50 * kKiB);
  SetColdForms();
  for (uint64_t step = 0; reads_ < reads && !HasFailure(); ++step) {
    SCOPED_TRACE(absl::StrCat("KVSTOW_SIMULATION_SEED=", seed - GetParam(), " seed ", seed,
                              ", step ", step));
    Step();
  }
  for (Faults& f : faults_) f.fail_writes = f.fail_erases = f.damage_reads = f.lose_reads = false;
  RecordProperty("verified_reads", std::to_string(reads_));
  EXPECT_GT(vanished_, 0u) << "nothing was ever dropped";
}

INSTANTIATE_TEST_SUITE_P(Seeds, SimulationTest, testing::Range<uint64_t>(0, 4));

}  // namespace
}  // namespace kvstow
