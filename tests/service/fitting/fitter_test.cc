// When a Fitter does what: its clock and its fits are the test's.
#include "service/fitting/fitter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "kernels/codec/calibrate.h"
#include "kernels/device/device.h"
#include "service/spaces/space_record.h"
#include "storage/tiers/memory_tier.h"
#include "storage/tiers/noop_tier.h"
#include "tests/service/fitting/auto_space.h"
#include "tests/storage/temp_dir.h"

namespace kvstow::testing {
namespace {

using std::chrono::minutes;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A store with pages whose bytes nobody looks at, and a Fitter.
class FitterTest : public ::testing::Test {
 protected:
  FitterTest() {
    TieredStoreParts parts;
    parts.tiers = {MakeNoopTier(), MakeMemoryTier(HostDevice()), MakeNoopTier()};
    parts.catalog = MakeNoopCatalog(*parts.tiers[2]);
    TieredStoreOptions options;
    options.budget_bytes = {0, uint64_t{64} << 20, 0};
    store_ = std::move(TieredStore::Open(options, std::move(parts)).value());
    EXPECT_TRUE(calibrations_->Load().ok());
    MakeSpaces();
  }
  ~FitterTest() override { fitter_.reset(); }

  std::shared_ptr<const Space> Open(const std::string& recipe = "auto",
                                    const std::string& name = "s") {
    const auto opened =
        spaces_->Open(Caller{}, {.name = name, .spec = Spec(), .recipe = recipe, .fidelity = {}});
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened->space;
  }
  void Put(const Space& space, uint64_t from, uint64_t to, bool hot = true) {
    for (uint64_t i = from; i < to; ++i) {
      PageToStore page{.name = {.space = space.id, .key = absl::StrCat("p", i)}};
      page.header = SharedBytes::Take(absl::StrCat("header ", i));
      page.raw_bytes = kTokens * BytesPerToken(space.spec);
      page.tokens = kTokens;
      page.hot = hot;
      page.bodies = {SharedBytes::Take(absl::StrCat("body ", i))};
      const std::span<const uint8_t> body = page.bodies[0].span();
      page.facts = {{.bytes = static_cast<uint32_t>(body.size()), .digest = Xxh3(body)}};
      ASSERT_TRUE(store_->Put(std::move(page)).ok());
    }
  }
  // Starts a server on the same disk, which may lack a space.
  void Restart(const std::vector<SpaceRecord>& records) {
    fitter_.reset();
    calibrations_ = std::make_unique<Calibrations>("", disk_.path());
    EXPECT_TRUE(calibrations_->Load().ok());
    MakeSpaces();
    spaces_->Recover(records);
    Start();
  }
  void MakeSpaces() {
    spaces_.emplace(
        Spaces::Options{}, *calibrations_, [this] { return store_->residency().NewSpaceId(); },
        [](const SpaceRecord&) { return absl::OkStatus(); });
  }
  static SpaceRecord RecordOf(const Space& space) {
    return {.id = space.id, .bytes = SharedBytes::Take(SerializeSpace(space)), .tenant = ""};
  }
  void Start() {
    Fitter::Options options{
        .look_every = std::chrono::milliseconds(1), .least_rest = minutes(1), .clock = &clock_};
    options.run = [this](const FitJob& job, const std::function<bool()>&) { return Run(job); };
    fitter_.emplace(std::move(options), *store_, *spaces_, *calibrations_);
  }
  // The next fit answers this; without an answer, that it failed.
  void Answer(FitOutcome outcome) {
    MutexLock lock(mu_);
    answers_.push_back(std::move(outcome));
  }
  absl::StatusOr<FitOutcome> Run(const FitJob& job) {
    MutexLock lock(mu_);
    jobs_.push_back(job);
    clock_.Advance(minutes(2));  // that a fit takes
    if (answers_.empty()) return absl::UnavailableError("no memory");
    FitOutcome out = std::move(answers_.front());
    answers_.pop_front();
    return out;
  }
  size_t Jobs() {
    MutexLock lock(mu_);
    return jobs_.size();
  }
  FitJob LastJob() {
    MutexLock lock(mu_);
    return jobs_.back();
  }
  // Lets the Fitter look a few times, and returns how many jobs there were.
  size_t JobsAfterLooks() {
    const uint64_t looks = fitter_->looks();
    EXPECT_TRUE(Eventually([&] { return fitter_->looks() >= looks + 2; }));
    return Jobs();
  }
  void SendStatistics(const Space& space, float gain) {
    ModelStats stats = OnlyHeadZero();
    stats.gain_k[0] = gain;
    const std::string blob = *StatsCalibration(Spec(), stats);
    ASSERT_TRUE(calibrations_->TakeStatistics(FitOwnerOf(space), Spec(), AsBytes(blob)).ok());
  }
  double Count(const std::string& name) const {
    for (const MetricRow& row : fitter_->Rows()) {
      if (row.name == name) return static_cast<double>(row.value);
    }
    ADD_FAILURE() << name;
    return -1;
  }
  // A look that found that the form before holds.
  static FitOutcome Holds(const std::string& recipe, double ratio) {
    FitOutcome out;
    out.own = {"own", 5, kTarget};
    out.before = {recipe, ratio, kTarget};
    out.why = "the form before holds";
    return out;
  }
  static FitOutcome Found(const std::string& recipe, double ratio, std::string blob = "") {
    FitOutcome out;
    out.own = {"own", 5, kTarget};
    out.best = {recipe, ratio, kTarget};
    out.blob = std::move(blob);
    out.tokens = 32 * kTokens;
    return out;
  }

  const TempDir disk_;
  ManualClock clock_;
  std::unique_ptr<Calibrations> calibrations_ = std::make_unique<Calibrations>("", disk_.path());
  std::unique_ptr<TieredStore> store_;
  std::optional<Spaces> spaces_;
  Mutex mu_;
  std::vector<FitJob> jobs_ KVSTOW_GUARDED_BY(mu_);
  std::deque<FitOutcome> answers_ KVSTOW_GUARDED_BY(mu_);
  std::optional<Fitter> fitter_;
};

TEST_F(FitterTest, AFitThatFoundNothingIsRepeatedAfterALongRest) {
  const auto space = Open("auto,hot=int8,cold=kvstow");
  Put(*space, 0, 40);
  FitOutcome nothing = Found("kvstow(levels=3,step=0.5)", 5);  // no smaller than its own form
  nothing.left_out = 2;
  Answer(nothing);
  Start();
  ASSERT_TRUE(Eventually([&] { return Jobs() == 1; }));
  EXPECT_EQ(JobsAfterLooks(), 1u);
  clock_.Advance(minutes(59));
  EXPECT_EQ(JobsAfterLooks(), 1u) << "there is nothing new";
  EXPECT_THAT(space->fitted->state().note,
              AllOf(HasSubstr("no clearly smaller form"), HasSubstr("left out 2 pages")));
  Answer(Found("kvstow(levels=3,step=0.9)", 6));
  clock_.Advance(minutes(2));
  ASSERT_TRUE(Eventually([&] { return !space->fitted->state().recipe.empty(); }));
  EXPECT_EQ(Jobs(), 2u);
  EXPECT_TRUE(LastJob().refit);
}

TEST_F(FitterTest, AFitThatFailedIsRepeatedAfterALongRest) {
  const auto space = Open("auto,hot=int8,cold=kvstow");
  Put(*space, 0, 40);
  Start();
  ASSERT_TRUE(Eventually([&] { return Jobs() == 1; }));
  EXPECT_EQ(JobsAfterLooks(), 1u);
  EXPECT_EQ(space->fitted->state().note, "a fit failed: no memory");
  clock_.Advance(minutes(30));
  EXPECT_EQ(JobsAfterLooks(), 1u) << "minutes of a core are not thrown away again and again";
  Answer(Found("kvstow(levels=3,step=0.9)", 6));
  clock_.Advance(minutes(31));
  EXPECT_TRUE(Eventually([&] { return !space->fitted->state().recipe.empty(); }));
}

// The pages of the first fit were few, and told nothing.
TEST_F(FitterTest, TwiceAsManyPagesAreFittedToAtOnce) {
  const auto space = Open("auto,hot=int8,cold=kvstow");
  Put(*space, 0, 40);
  Answer(Found("kvstow(levels=3,step=0.5)", 5));
  Start();
  ASSERT_TRUE(Eventually([&] { return Jobs() == 1; }));
  Put(*space, 40, 80);
  Answer(Found("kvstow(levels=3,step=0.9)", 6));
  clock_.Advance(minutes(9));
  EXPECT_TRUE(Eventually([&] { return !space->fitted->state().recipe.empty(); }));
}

// What looks for a step failed for want of memory, say.
TEST_F(FitterTest, AStepThatWasNotFoundIsSoughtAgain) {
  const auto space = Open();
  Put(*space, 0, 4);
  Start();
  ASSERT_TRUE(Eventually([&] { return Jobs() == 1; }));
  EXPECT_EQ(JobsAfterLooks(), 1u);
  Answer(Found("kvstow(levels=3,step=0.7)", 6));
  clock_.Advance(minutes(61));
  EXPECT_TRUE(Eventually([&] { return space->fitted->codec() != nullptr; }));
  EXPECT_EQ(space->fitted->state().recipe, "") << "it is the space's own form";
}

// The step is the form that fits are compared with, and it is judged on new pages.
TEST_F(FitterTest, TheStepThatWasSoughtIsJudgedLater) {
  const auto space = Open();
  Put(*space, 0, 40);
  Answer(Found("kvstow(levels=3,step=0.7)", 6));  // the step
  FitOutcome fit = Found("kvstow(levels=3,step=0.71)", 6.1);
  fit.before = {"kvstow(levels=3,step=0.7)", 6, kTarget};
  Answer(fit);
  Start();
  ASSERT_TRUE(Eventually([&] { return space->fitted->state().fits == 1; }));
  EXPECT_EQ(LastJob().recipe, "kvstow(levels=3,step=0.7)");
  EXPECT_EQ(LastJob().blob, "");
  EXPECT_EQ(space->fitted->state().ratio, 6) << "of the step";

  // It holds no longer.
  fit.before.divergence = 2 * kTarget;
  fit.best = {"kvstow(levels=3,step=0.4)", 4, kTarget};
  Answer(fit);
  clock_.Advance(minutes(9));
  ASSERT_TRUE(Eventually([&] { return space->fitted->state().fits == 2; }));
  EXPECT_FALSE(LastJob().refit) << "there is nothing new but pages";
  EXPECT_EQ(space->fitted->state().recipe, "kvstow(levels=3,step=0.4)");
}

TEST_F(FitterTest, NewStatisticsHaveTheStepSoughtAgain) {
  const auto space = Open();
  Put(*space, 0, 4);
  Answer(Found("kvstow(levels=3,step=0.7)", 6));
  Start();
  ASSERT_TRUE(Eventually([&] { return space->fitted->codec() != nullptr; }));
  EXPECT_EQ(JobsAfterLooks(), 1u);
  Answer(Found("kvstow(levels=3,step=0.3)", 4));
  const std::string blob = *StatsCalibration(Spec(), OnlyHeadZero());
  ASSERT_TRUE(calibrations_->TakeStatistics(FitOwnerOf(*space), Spec(), AsBytes(blob)).ok());
  EXPECT_TRUE(Eventually(
      [&] { return absl::StrContains(space->fitted->codec()->recipe().text(), "step=0.3"); }));
  EXPECT_FALSE(LastJob().statistics.empty());
  EXPECT_EQ(JobsAfterLooks(), 2u);
}

// A form without tables replaces one with tables also after a restart.
TEST_F(FitterTest, AFormWithoutTablesComesBackAfterARestart) {
  const auto space = Open("auto,hot=int8,cold=kvstow");
  Put(*space, 0, 40);
  Answer(Found("kvstow-cal(run=1,levels=3,step=2)", 20, *FitCorrelated(Spec(), 1)));
  Start();
  ASSERT_TRUE(Eventually([&] { return space->fitted->state().fits == 1; }));
  FitOutcome fit = Found("kvstow(levels=3,step=0.4)", 4);
  fit.before = {"kvstow-cal(run=1,levels=3,step=2)", 20, 2 * kTarget};
  Answer(fit);
  clock_.Advance(minutes(9));
  ASSERT_TRUE(Eventually([&] { return space->fitted->state().fits == 2; }));
  EXPECT_EQ(space->fitted->state().recipe, "kvstow(levels=3,step=0.4)");

  const SpaceRecord record = RecordOf(*space);
  Restart({record});
  const auto again = spaces_->Find(space->id);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->fitted->state().recipe, "kvstow(levels=3,step=0.4)");
  // What it was fitted on is not known. It is judged, and not fitted anew.
  ASSERT_TRUE(Eventually([&] { return Jobs() == 3; }));
  EXPECT_EQ(LastJob().recipe, "kvstow(levels=3,step=0.4)");
  EXPECT_FALSE(LastJob().refit);
  JobsAfterLooks();
  Put(*again, 40, 80);
  clock_.Advance(minutes(100));
  ASSERT_TRUE(Eventually([&] { return Jobs() == 4; }));
  EXPECT_TRUE(LastJob().refit) << "twice as many pages";
}

TEST_F(FitterTest, StatisticsOfBeforeARestartAreNoNews) {
  const auto space = Open("auto,hot=int8,cold=kvstow");
  Put(*space, 0, 40);
  SendStatistics(*space, 2);
  Answer(Found("kvstow(levels=3,step=0.4)", 6));
  Start();
  ASSERT_TRUE(Eventually([&] { return space->fitted->state().fits == 1; }));
  Answer(Holds("kvstow(levels=3,step=0.4)", 6));
  const SpaceRecord record = RecordOf(*space);
  Restart({record});
  ASSERT_TRUE(Eventually([&] { return Jobs() == 2; }));
  EXPECT_FALSE(LastJob().refit);
  EXPECT_FALSE(LastJob().statistics.empty());
  JobsAfterLooks();
  SendStatistics(*space, 3);
  clock_.Advance(minutes(100));
  ASSERT_TRUE(Eventually([&] { return Jobs() == 3; }));
  EXPECT_TRUE(LastJob().refit);
}

// Each worker of a fleet sends some, as none has seen those of the others.
TEST_F(FitterTest, StatisticsAfterTheFirstWaitUntilTheSpaceHasRested) {
  const auto space = Open("auto,hot=int8,cold=kvstow");
  Put(*space, 0, 40);
  Answer(Found("kvstow(levels=3,step=0.4)", 6));
  Start();
  ASSERT_TRUE(Eventually([&] { return space->fitted->state().fits == 1; }));
  EXPECT_EQ(JobsAfterLooks(), 1u);
  Answer(Found("kvstow(levels=3,step=0.5)", 7));
  SendStatistics(*space, 2);
  ASSERT_TRUE(Eventually([&] { return Jobs() == 2; })) << "the first are fitted to at once";
  for (const float gain : {3.0F, 4.0F, 5.0F}) {
    SendStatistics(*space, gain);
    EXPECT_EQ(JobsAfterLooks(), 2u);
  }
  clock_.Advance(minutes(9));
  ASSERT_TRUE(Eventually([&] { return Jobs() == 3; }));
  EXPECT_TRUE(LastJob().refit) << "once to all of them";
}

TEST_F(FitterTest, OnlyWhatWasFittedCountsAsAFit) {
  const auto space = Open();
  Put(*space, 0, 40);
  FitOutcome step = Found("", 0);  // there is none
  Answer(step);
  Answer(Found("kvstow(levels=3,step=0.4)", 6));
  Start();
  ASSERT_TRUE(Eventually([&] { return space->fitted->state().fits == 1; }));
  for (const size_t jobs : {3, 4}) {
    JobsAfterLooks();
    Answer(Holds("kvstow(levels=3,step=0.4)", 6.5));
    clock_.Advance(minutes(100));
    ASSERT_TRUE(Eventually([&] { return Jobs() == jobs; }));
  }
  JobsAfterLooks();
  EXPECT_EQ(space->fitted->state().ratio, 6.5) << "it was judged";
  EXPECT_EQ(space->fitted->state().fits, 1u);
  EXPECT_EQ(Count("fits_total"), 1);
  EXPECT_EQ(Count("fit_failures_total"), 0);
}

TEST_F(FitterTest, ASearchForAStepThatFailedCounts) {
  const auto space = Open();
  Put(*space, 0, 4);
  Start();
  ASSERT_TRUE(Eventually([&] { return Jobs() == 1; }));
  JobsAfterLooks();
  EXPECT_EQ(Count("fit_failures_total"), 1);
  EXPECT_EQ(Count("fits_total"), 0);
}

// Most pages of a large space are cold.
TEST_F(FitterTest, ASampleFindsTheFewPagesThatAreHot) {
  const auto space = Open("auto,hot=int8,cold=kvstow");
  Put(*space, 0, 40'000, /*hot=*/false);
  Put(*space, 40'000, 40'200);
  const FitSamplePlan plan = PlanFitSample(*store_, space->id, {});
  EXPECT_EQ(plan.tokens + plan.held_out_tokens, 200u * kTokens);
  EXPECT_EQ(plan.fitted_on.size() + plan.held_out.size(), 200u);
  const FitSamplePlan some = PlanFitSample(*store_, space->id, {.pages = 50});
  EXPECT_EQ(some.fitted_on.size() + some.held_out.size(), 50u);
}

// A space with a form says so, and how the form came.
TEST_F(FitterTest, ASpaceWithAFormSaysWhyItIsNotJudged) {
  const auto space = Open("auto,hot=int8,cold=kvstow");
  Put(*space, 0, 40);
  Answer(Found("kvstow(levels=3,step=0.9)", 6));
  Start();
  ASSERT_TRUE(Eventually([&] { return space->fitted->state().fits == 1; }));
  JobsAfterLooks();
  const std::string came = space->fitted->state().note;
  for (uint64_t i = 0; i < 40; ++i) {
    const PageName name{.space = space->id, .key = absl::StrCat("p", i)};
    ASSERT_TRUE(store_->Delete(name, /*force=*/true).ok());
  }
  Put(*space, 100, 140, /*hot=*/false);
  clock_.Advance(minutes(100));
  const std::string waits =
      absl::StrCat(came, "; now: waits for pages in their hot form: 0 tokens of 2304");
  EXPECT_TRUE(Eventually([&] { return space->fitted->state().note == waits; }))
      << space->fitted->state().note;
  clock_.Advance(minutes(100));
  JobsAfterLooks();
  EXPECT_EQ(space->fitted->state().note, waits) << "it is said once";
}

// An older server finds the record of a space that a newer one wrote. The pages come back with the
// newer server, and need the tables.
TEST_F(FitterTest, TablesOfSpacesThatCouldNotBeReadStay) {
  const auto known = Open("auto", "known"), unknown = Open("auto", "unknown");
  std::map<SpaceId, CalibrationId> tables;
  for (const auto& space : {known, unknown}) {
    const FitOwner owner = FitOwnerOf(*space);
    const std::string blob = *WithFitNote(AsBytes(*FitCorrelated(Spec(), 1)),
                                          {owner.name, 1, "kvstow-cal(run=1,levels=3,step=2)"});
    tables[space->id] = calibrations_->AddFitted(owner, AsBytes(blob)).value();
  }
  const auto is_here = [&](const Space& space) {
    return calibrations_->store().Find(tables[space.id]) != nullptr;
  };
  SpaceRecord newer = RecordOf(*unknown);
  newer.bytes = SharedBytes::Take(std::string("\xff\xff"));
  const SpaceRecord record = RecordOf(*known);
  Restart({record, newer});
  JobsAfterLooks();
  EXPECT_TRUE(is_here(*known));
  EXPECT_TRUE(is_here(*unknown));
  spaces_->Forget(*known);
  JobsAfterLooks();
  EXPECT_FALSE(is_here(*known)) << "it was open, and is dropped";
  EXPECT_TRUE(is_here(*unknown));
  Restart({});
  EXPECT_FALSE(is_here(*unknown)) << "all records were read, and none is of that space";
}

TEST_F(FitterTest, AFitMayMakeAsManyTablesAsTheSpaceHasRoomFor) {
  calibrations_ = std::make_unique<Calibrations>("", disk_.path(), NoDataKeys(), 1000);
  MakeSpaces();
  const auto space = Open("auto,hot=int8,cold=kvstow");
  Put(*space, 0, 40);
  Start();
  ASSERT_TRUE(Eventually([&] { return Jobs() == 1; }));
  EXPECT_EQ(LastJob().most_table_bytes, 500u);
}

}  // namespace
}  // namespace kvstow::testing
