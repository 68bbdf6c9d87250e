// Spaces of recipe `auto`: the server fits their cold form to what it holds, and nobody else's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "client/client.h"
#include "kernels/calibration/query_means.h"
#include "kernels/codec/calibrate.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/methods/joint_vectors.h"
#include "service/fitting/fit.h"
#include "service/fitting/fit_process.h"
#include "service/fitting/fit_sample.h"
#include "service/fitting/sound_pages.h"
#include "service/spaces/space_record.h"
#include "tests/kernels/random_query_means.h"
#include "tests/paths.h"
#include "tests/service/fitting/auto_space.h"
#include "tests/storage/temp_dir.h"

namespace kvstow::testing {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

FitPage HotPage(const Codec& hot, uint64_t seed) {
  const std::vector<uint8_t> raw = CorrelatedPage(Spec(), kTokens, seed, seed % 2 * kTokens);
  const EncodedPage page = *hot.Encode(
      {.raw = raw, .tokens = kTokens, .first_position = seed % 2 * kTokens, .key = "k"});
  return {page.header_bytes, page.segments};
}

// A page whose tokens from `first` on are so many times as large.
FitPage ScaledPage(const Codec& hot, uint64_t seed, float scale, uint32_t first = 0) {
  const uint64_t position = seed % 2 * kTokens;
  std::vector<uint8_t> raw = CorrelatedPage(Spec(), kTokens, seed, position);
  const JointVectors vectors(Spec(), {{0, Spec().layers}, kTokens, position});
  std::vector<float> x(kTokens * vectors.width());
  EXPECT_TRUE(vectors.Gather(raw, {0, kTokens}, x.data()));
  for (size_t i = first * vectors.width(); i < x.size(); ++i) x[i] *= scale;
  vectors.Scatter(x.data(), {0, kTokens}, raw);
  const EncodedPage page =
      *hot.Encode({.raw = raw, .tokens = kTokens, .first_position = position, .key = "k"});
  return {page.header_bytes, page.segments};
}

double StepOf(const std::string& recipe) {
  const size_t at = recipe.find("step=");
  return at == std::string::npos ? 0 : std::stod(recipe.substr(at + 5));
}

// A job of this many pages to fit to, and of four to test on.
class FitTest : public ::testing::Test {
 protected:
  FitJob Job(uint64_t pages, double divergence = kTarget, const std::string& forms = "") {
    Space space;
    space.id = 1;
    space.name = "s";
    space.spec = Spec();
    space.recipe = absl::StrCat("auto(divergence=", divergence, ")", forms);
    EXPECT_TRUE(MakeCodecs(*SpaceRecipe::Parse(space.recipe), none_, space).ok());
    space.promise = {};
    space.fingerprint = FingerprintOf(space.spec, space.pipeline, space.promise);
    FitJob job{.space = SerializeSpace(space), .divergence = divergence};
    for (uint64_t i = 0; i < pages; ++i) job.fitted_on.push_back(HotPage(*space.codec, i));
    for (uint64_t i = 0; i < 4; ++i) job.held_out.push_back(HotPage(*space.codec, 1000 + i));
    return job;
  }

  Calibrations none_{""};
};

TEST_F(FitTest, TheBestFormIsSmallerAndCostsNoMore) {
  const auto fit = RunFit(Job(24));
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_THAT(fit->best.recipe, StartsWith("kvstow-cal("));
  EXPECT_LE(fit->best.divergence, 1.04 * kTarget);
  EXPECT_GT(fit->best.divergence, 0.5 * kTarget) << "it takes what it may";
  EXPECT_GT(fit->best.ratio, 1.5 * fit->own.ratio) << "six latent values drive all";
  EXPECT_EQ(fit->tokens, 24u * kTokens);
  EXPECT_FALSE(fit->blob.empty());
  EXPECT_TRUE(fit->why.empty());
}

TEST_F(FitTest, AFormThatHoldsIsLeftAloneUntilThereIsMoreToFitTo) {
  FitJob job = Job(24);
  const FitOutcome first = *RunFit(job);
  job.recipe = first.best.recipe;
  job.blob = first.blob;
  const FitOutcome holds = *RunFit(job);
  EXPECT_EQ(holds.tokens, 0u) << "nothing was fitted";
  EXPECT_EQ(holds.before.recipe, first.best.recipe);
  EXPECT_DOUBLE_EQ(holds.before.divergence, first.best.divergence);
  EXPECT_TRUE(holds.best.recipe.empty());
  job.refit = true;
  EXPECT_EQ(RunFit(job)->best.recipe, first.best.recipe);
}

TEST_F(FitTest, StatisticsOfTheModelSayWhatItCosts) {
  FitJob job = Job(24);
  const FitOutcome without = *RunFit(job);
  job.statistics = *StatsCalibration(Spec(), OnlyHeadZero());
  const auto with = RunFit(job);
  ASSERT_TRUE(with.ok()) << with.status();
  EXPECT_LT(with->best.ratio, without.best.ratio / 1.3);
  EXPECT_LE(with->best.divergence, 1.04 * kTarget) << "by the statistics";
  EXPECT_GT(with->best.divergence, 0.5 * kTarget) << "it takes what it may";
  EXPECT_GT(with->own.divergence, 2 * without.own.divergence);
  job.statistics = "nonsense";
  EXPECT_FALSE(RunFit(job).ok());
}

// A cold form for normed keys says that the model has such, and what it feels is guessed by that.
TEST_F(FitTest, ACodeOfNormedKeysGoesByTheirLaw) {
  const FitOutcome usual = *RunFit(Job(24));
  const FitOutcome normed = *RunFit(Job(24, kTarget, ",hot=int8,cold=kvstow(keys=2)"));
  EXPECT_THAT(normed.own.recipe, HasSubstr("keys=2"));
  EXPECT_THAT(normed.best.recipe, StartsWith("kvstow-cal("));
  EXPECT_LE(normed.best.divergence, 1.04 * kTarget);
  EXPECT_LT(normed.best.ratio, usual.best.ratio / 1.1) << "such a model feels errors more";
}

// A fit that gains nothing by a transform still finds a step of that code.
TEST_F(FitTest, ACodeOfNormedKeysStaysOne) {
  FitJob job = Job(24, kTarget, ",hot=int8,cold=kvstow(keys=2)");
  job.most_table_bytes = 1;
  const FitOutcome out = *RunFit(job);
  EXPECT_THAT(out.best.recipe, AllOf(StartsWith("kvstow("), HasSubstr("keys=2")));
  EXPECT_LE(out.best.divergence, 1.04 * kTarget);
}

// Noise of full rank shows no directions: a calibrated code has nothing to gain.
TEST_F(FitTest, NoiseGetsNoCalibration) {
  FitJob job = Job(0);
  Calibrations none("");
  const auto space = *ParseSpace(AsBytes(job.space), none);
  const auto noise = [&](uint64_t seed) {
    const std::string raw = RandomPage(Spec(), kTokens, seed);
    const EncodedPage page =
        *space->codec->Encode({.raw = AsBytes(raw), .tokens = kTokens, .key = "k"});
    return FitPage{page.header_bytes, page.segments};
  };
  for (uint64_t i = 0; i < 20; ++i) job.fitted_on.push_back(noise(i));
  for (FitPage& page : job.held_out) page = noise(99 + page.bodies.size());
  const auto fit = RunFit(job);
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_LT(fit->best.ratio, 1.3 * fit->own.ratio) << fit->best.recipe;
}

// A layer has 48 values a token: tables take 27,648 bytes for runs of one layer, 46,080 for two
// and one, 82,944 for all three.
TEST_F(FitTest, RunsAreAsLongAsTablesMayBeLarge) {
  FitJob job = Job(24);
  const auto fit_within = [&](uint64_t bytes) {
    job.most_table_bytes = bytes;
    return *RunFit(job);
  };
  EXPECT_THAT(fit_within(82'944).best.recipe, StartsWith("kvstow-cal(run=3,"));
  EXPECT_THAT(fit_within(82'943).best.recipe, StartsWith("kvstow-cal(run=2,"));
  const FitOutcome one = fit_within(46'079);
  EXPECT_THAT(one.best.recipe, StartsWith("kvstow-cal(run=1,"));
  EXPECT_LT(one.blob.size(), 46'079u);
  const FitOutcome none = fit_within(27'647);
  EXPECT_THAT(none.best.recipe, StartsWith("kvstow("));
  EXPECT_THAT(none.why, HasSubstr("raise fit-bytes"));
}

// Codes of both forms have step classes, and tokens of one get attention.
TEST_F(FitTest, MeanQueriesGoIntoTheTables) {
  ModelStats stats = OnlyHeadZero();
  const size_t heads = size_t{Spec().layers} * Spec().kv_heads;
  stats.slope_k.resize(heads * Spec().head_dim_k, 0.01f);
  stats.slope_v.resize(heads * Spec().head_dim_v, 0.01f);
  const auto coded_with = [&](const ModelStats& of) {
    FitJob job = Job(24);
    job.statistics = *StatsCalibration(Spec(), of);
    const FitOutcome fit = *RunFit(job);
    EXPECT_THAT(fit.best.recipe, StartsWith("kvstow-cal("));
    CalibrationStore store;
    const auto tables = *store.Add(AsBytes(fit.blob));
    EXPECT_EQ(tables->Has(kQueryMeansSection), of.queries != nullptr);
    const std::string recipe =
        absl::StrCat("kvstow-cal(run=", tables->shape().layers_per_run, ",step=2)");
    const auto codec = *CodecOfForm(recipe, tables->id(), Spec(), store);
    const auto raw = CorrelatedPage(Spec(), kTokens, 77, kTokens);
    const EncodedPage page =
        *codec->Encode({.raw = raw, .tokens = kTokens, .first_position = kTokens, .key = "k"});
    std::string bodies;
    for (const SharedBytes& body : page.segments) absl::StrAppend(&bodies, AsString(body.span()));
    return bodies;
  };
  const std::string without = coded_with(stats);
  stats.queries = std::make_shared<QueryMeans>(RandomMeans(Spec(), {0, 2}, 4));
  EXPECT_NE(coded_with(stats), without);
}

TEST_F(FitTest, WithoutPagesToFitToItLooksForAStep) {
  for (const double divergence : {0.01, 0.1}) {
    const auto step = RunFit(Job(0, divergence));
    ASSERT_TRUE(step.ok()) << step.status();
    EXPECT_THAT(step->best.recipe, StartsWith("kvstow(levels=3,step="));
    EXPECT_NEAR(step->best.divergence, divergence, 0.04 * divergence);
    EXPECT_EQ(step->tokens, 0u);
    EXPECT_TRUE(step->blob.empty());
  }
}

TEST_F(FitTest, BadJobsAreRefused) {
  EXPECT_THAT(std::string(RunFit(Job(3)).status().message()), HasSubstr("too few"));
  FitJob other = Job(24);
  PageHeader header = *ParsePageHeader(other.fitted_on[5].header.span());
  header.kv_heads = 1;  // another model's
  other.fitted_on[5].header = SharedBytes::Take(SerializePageHeader(header));
  EXPECT_EQ(RunFit(other).status().code(), absl::StatusCode::kInvalidArgument);
  other.space = "nonsense";
  EXPECT_FALSE(RunFit(other).ok());
}

TEST_F(FitTest, DamagedPagesAreLeftOut) {
  const auto hot = *MakeCodec(*ParseRecipe("raw"), Spec(), none_.store());
  const FitOutcome clean = *RunFit(Job(24));
  FitJob job = Job(24);
  FitPage cut = HotPage(*hot, 7), no_header = cut;
  cut.bodies[0] = SharedBytes::Take(std::string("short"));
  no_header.header = SharedBytes::Take(std::string("short"));
  // The first token of a text holds NaN.
  std::vector<uint8_t> raw = CorrelatedPage(Spec(), kTokens, 8, 0);
  raw[0] = raw[1] = 0xff;
  const EncodedPage nan = *hot->Encode({.raw = raw, .tokens = kTokens, .key = "k"});
  for (const FitPage& page : {cut, no_header, FitPage{nan.header_bytes, nan.segments}}) {
    job.fitted_on.push_back(page);
    job.held_out.push_back(page);
  }
  const auto fit = RunFit(job);
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_EQ(fit->left_out, 6u);
  EXPECT_EQ(fit->tokens, clean.tokens);
  EXPECT_EQ(fit->best.recipe, clean.best.recipe);
  job.held_out.erase(job.held_out.begin(), job.held_out.begin() + 3);
  EXPECT_THAT(std::string(RunFit(job).status().message()),
              AllOf(HasSubstr("too few"), HasSubstr("6 pages were left out, the last one as")));
}

// Without statistics the spread of the pages says what errors cost. One page of another scale would
// make errors of all others look cheap.
TEST_F(FitTest, APageOfAnotherScaleChangesNothing) {
  const auto hot = *MakeCodec(*ParseRecipe("int8"), Spec(), none_.store());
  for (const uint64_t pages : {0, 24}) {
    const FitOutcome clean = *RunFit(Job(pages));
    EXPECT_EQ(clean.left_out, 0u) << "first pages of texts are like the others";
    for (const float scale : {100.0F, 0.01F}) {
      FitJob job = Job(pages);
      job.held_out.push_back(ScaledPage(*hot, 2001, scale));
      if (pages > 0) job.fitted_on.push_back(ScaledPage(*hot, 2003, scale));
      const auto fit = RunFit(job);
      ASSERT_TRUE(fit.ok()) << fit.status();
      EXPECT_EQ(fit->left_out, pages > 0 ? 2u : 1u);
      EXPECT_EQ(fit->tokens, pages * kTokens);
      EXPECT_NEAR(StepOf(fit->best.recipe), StepOf(clean.best.recipe), 0.01)
          << clean.best.recipe << " and " << fit->best.recipe;
    }
  }
}

// Tokens that draw much attention are far out in honest pages, too.
TEST_F(FitTest, APageWithAFewTokensFarOutIsLikeTheOthers) {
  const auto hot = *MakeCodec(*ParseRecipe("int8"), Spec(), none_.store());
  FitJob job = Job(5);
  job.held_out.push_back(ScaledPage(*hot, 2001, 100, kTokens - 5));
  const auto pages = TakeSoundPages(job, Spec());
  ASSERT_TRUE(pages.ok()) << pages.status();
  EXPECT_EQ(pages->left_out, 0u);
  EXPECT_EQ(pages->held_out.size(), 5u);
  EXPECT_EQ(pages->tokens, 5u * kTokens);
}

TEST_F(FitTest, OfTwoPagesNoneIsLeftOut) {
  const auto hot = *MakeCodec(*ParseRecipe("int8"), Spec(), none_.store());
  FitJob job = Job(0);
  job.held_out = {HotPage(*hot, 1), ScaledPage(*hot, 3, 100)};
  EXPECT_EQ(TakeSoundPages(job, Spec())->left_out, 0u);
}

// A search that goes below the finest step of its op ends there.
TEST_F(FitTest, WhereNoStepCostsAsLittleThereIsNoForm) {
  for (const uint64_t pages : {0, 24}) {
    FitJob job = Job(pages);
    job.divergence = 1e-8;
    const auto fit = RunFit(job);
    ASSERT_TRUE(fit.ok()) << fit.status();
    EXPECT_EQ(fit->best.recipe, "");
    EXPECT_EQ(fit->why, pages > 0 ? "no step costs as little" : "");
  }
}

TEST_F(FitTest, MessagesComeBackAsTheyWent) {
  FitJob job = Job(2);
  job.recipe = "kvstow(step=0.7)";
  job.blob = std::string(100'000, 'b');
  job.refit = true;
  job.statistics = "statistics";
  job.most_table_bytes = 12'345;
  const std::string bytes = SerializeFitJob(job);
  const FitJob back = *ParseFitJob(SharedBytes::CopyOf(AsBytes(bytes)));
  EXPECT_EQ(SerializeFitJob(back), bytes);
  EXPECT_EQ(back.blob, job.blob);
  EXPECT_EQ(back.statistics, job.statistics);
  EXPECT_EQ(back.most_table_bytes, 12'345u);
  EXPECT_EQ(back.held_out.size(), 4u);
  for (const size_t cut : {size_t{0}, size_t{5}, bytes.size() / 2, bytes.size() - 1}) {
    EXPECT_FALSE(ParseFitJob(SharedBytes::CopyOf(AsBytes(bytes).first(cut))).ok()) << cut;
  }
  const FitOutcome outcome{.own = {"a", 1, 2},
                           .before = {},
                           .best = {"b", 3, 4},
                           .blob = "blob",
                           .tokens = 7,
                           .left_out = 8,
                           .why = "why"};
  const std::string said = SerializeFitOutcome(outcome);
  EXPECT_EQ(SerializeFitOutcome(*ParseFitOutcome(SharedBytes::CopyOf(AsBytes(said)))), said);
}

TEST_F(FitTest, AProcessSaysTheSameAndIsKilledOnDemand) {
  const std::string program = ProgramPath("kvstowd");
  const FitJob job = Job(24);
  const auto never = [] { return false; };
  const auto there = RunFitProcess(job, program, 0, never);
  ASSERT_TRUE(there.ok()) << there.status();
  EXPECT_EQ(SerializeFitOutcome(*there), SerializeFitOutcome(*RunFit(job)));
  EXPECT_THAT(std::string(RunFitProcess(Job(1), program, 0, never).status().message()),
              HasSubstr("too few"));
  EXPECT_TRUE(absl::IsCancelled(RunFitProcess(job, program, 0, [] { return true; }).status()));
  EXPECT_TRUE(absl::IsUnavailable(RunFitProcess(job, "/nowhere", 0, never).status()));
  EXPECT_TRUE(absl::IsUnavailable(RunFitProcess(job, "/bin/false", 0, never).status()));
}

// A stop of the server goes to all of its processes. The server ends a fit by itself.
TEST_F(FitTest, AProcessGoesOnWhenTheServerIsToldToStop) {
  const TempDir folder;
  const auto program = [&](const std::string& text) {
    const std::string path = folder.path() + "/program";
    std::ofstream(path) << "#!/bin/sh\n" << text;
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  };
  const FitJob job = Job(0);
  const auto said = [&](const std::string& text) {
    return RunFitProcess(job, program(text), 0, [] { return false; });
  };
  const auto fit = said(absl::StrCat("kill -TERM $$\nkill -INT $$\nkill -HUP $$\nexec ",
                                     ProgramPath("kvstowd"), " \"$@\"\n"));
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_EQ(SerializeFitOutcome(*fit), SerializeFitOutcome(*RunFit(job)));
  EXPECT_THAT(std::string(said("kill -KILL $$\n").status().message()),
              HasSubstr("signal 9, maybe for want of memory"));
  EXPECT_THAT(std::string(said("kill -SEGV $$\n").status().message()),
              EndsWith("was ended by signal 11"));
}

TEST_F(AutoSpaceTest, ColdPagesBecomeTheFittedFormAlsoAfterARestart) {
  EXPECT_THAT(Open("s").pipeline(), StartsWith("auto(divergence=0.01),hot=affine("));
  Put("s", 0, 4);
  EXPECT_TRUE(Eventually([&] {
    return absl::StartsWith(
        Fitted("s").note(),
        "waits for pages: 512 tokens of 2304; until then kvstow(levels=3,step=");
  })) << Fitted("s").note();
  Put("s", 4, 40);
  ASSERT_TRUE(Eventually([&] { return !Fitted("s").recipe().empty(); })) << Fitted("s").note();
  const v1::FittedForm form = Fitted("s");
  EXPECT_THAT(form.recipe(), StartsWith("kvstow-cal("));
  EXPECT_GT(form.ratio(), 8);
  EXPECT_LE(form.divergence(), 1.04 * form.target());
  EXPECT_GE(Metric("kvstow_fit_switches_total"), 1);

  MakeCold();
  const std::string cold = RecipeOf("s", "p7");
  EXPECT_THAT(cold, AllOf(StartsWith("joint("), HasSubstr("blob=")));
  StopServer();
  StartServer();
  Open("s");
  EXPECT_EQ(Fitted("s").recipe(), form.recipe());
  EXPECT_EQ(RecipeOf("s", "p7"), cold) << "its tables came back";
}

TEST_F(AutoSpaceTest, FirstPagesGetTheStepThatCostsWhatTheyMay) {
  Open("s", "auto(divergence=0.1)");
  Put("s", 0, 1);
  MakeCold();
  EXPECT_THAT(RecipeOf("s", "p0"), StartsWith("planes(")) << "128 tokens are too few for a step";
  Put("s", 1, 5);
  constexpr char kUntilThen[] = "waits for pages: 640 tokens of 2304; until then ";
  ASSERT_TRUE(Eventually([&] { return absl::StartsWith(Fitted("s").note(), kUntilThen); }))
      << Fitted("s").note();
  EXPECT_EQ(Fitted("s").recipe(), "") << "nothing is fitted";
  const std::string form = Fitted("s").note().substr(sizeof(kUntilThen) - 1);
  MakeCold();
  for (const char* const key : {"p1", "p2", "p3", "p4"}) {
    EXPECT_EQ(RecipeOf("s", key), ParseRecipe(form)->pipeline());
  }
  EXPECT_NE(RecipeOf("s", "p0"), RecipeOf("s", "p1"));
}

// A recipe that names the forms keeps its step.
TEST_F(AutoSpaceTest, AStepThatARecipeNamesStays) {
  Open("s", "auto,hot=int8,cold=kvstow");
  Put("s", 0, 8);
  ASSERT_TRUE(Eventually([&] {
    return Fitted("s").note() == "waits for pages: 1024 tokens of 2304";
  })) << Fitted("s").note();
  MakeCold();
  EXPECT_EQ(RecipeOf("s", "p7"), ParseRecipe("kvstow")->pipeline());
}

// A client that asks for encoded pages cannot have tables that the server made a moment ago. The
// pages come raw then.
TEST_F(AutoSpaceTest, ClientsThatLackTheTablesGetRawPages) {
  Open("s");
  Put("s", 0, 40);
  ASSERT_TRUE(Eventually([&] { return !Fitted("s").recipe().empty(); })) << Fitted("s").note();
  MakeCold();
  const std::string raw = client_->Get("s", {Ask("p7")}).pages[0].data;
  for (const size_t connections : {0, 2}) {
    const auto client = Client::Connect({.address = server_->address(),
                                         .payload = Payload::kEncoded,
                                         .direct_connections = connections});
    ASSERT_TRUE(client->OpenSpace({.name = "s", .spec = Spec(), .recipe = ""}).ok());
    std::vector<std::vector<uint8_t>> out(2, std::vector<uint8_t>(raw.size()));
    std::vector<PageGet> pages;
    for (auto& bytes : out) pages.push_back({.key = "p7", .out = bytes});
    const std::vector<GetResult> got = client->Get("s", 0, pages).get();
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].outcome, PageOutcome::kHit) << got[i].message;
      EXPECT_EQ(AsString(out[i]), raw);
    }
  }
}

TEST_F(AutoSpaceTest, WhatWasFittedToASpaceServesNoOther) {
  Open("s");
  Put("s", 0, 40);
  ASSERT_TRUE(Eventually([&] { return !Fitted("s").recipe().empty(); })) << Fitted("s").note();
  EXPECT_FALSE(std::filesystem::is_empty(FittedFolder()));
  // The same model, and a recipe that takes any calibration that fits.
  v1::OpenSpaceResponse out;
  for (const char* run : {"1", "2", "3"}) {
    EXPECT_EQ(TryOpen("t", absl::StrCat("kvstow-cal(run=", run, ")"), out).error_code(),
              grpc::StatusCode::FAILED_PRECONDITION);
  }

  Open("u");
  EXPECT_TRUE(Fitted("u").recipe().empty());
  v1::DropSpaceRequest drop;
  drop.set_space("s");
  drop.set_fingerprint(Open("s").fingerprint());
  v1::DropSpaceResponse dropped;
  EXPECT_TRUE(client_->kv().DropSpace(client_->Context().get(), drop, &dropped).ok());
  EXPECT_TRUE(Eventually([&] { return std::filesystem::is_empty(FittedFolder()); }))
      << "the tables go with the space";
}

TEST_F(AutoSpaceTest, StatisticsOfTheModelChangeTheFormAtOnce) {
  EXPECT_TRUE(Open("s").wants_statistics());
  Put("s", 0, 40);
  ASSERT_TRUE(Eventually([&] { return !Fitted("s").recipe().empty(); })) << Fitted("s").note();
  const v1::FittedForm before = Fitted("s");
  EXPECT_FALSE(before.statistics());
  const std::string blob = *StatsCalibration(Spec(), OnlyHeadZero());
  ASSERT_TRUE(SendStatistics("s", blob).ok());
  EXPECT_FALSE(Open("s").wants_statistics());
  EXPECT_TRUE(Fitted("s").statistics());
  ASSERT_TRUE(Eventually([&] { return Fitted("s").ratio() < before.ratio() / 1.3; }))
      << Fitted("s").ratio() << " after " << before.ratio() << ": " << Fitted("s").note();

  v1::SendStatisticsResponse again;
  ASSERT_TRUE(SendStatistics("s", blob, &again).ok());
  EXPECT_TRUE(again.already_there());
  StopServer();
  StartServer();
  EXPECT_FALSE(Open("s").wants_statistics()) << "they come back";
  EXPECT_TRUE(Open("t").wants_statistics()) << "they are one space's";
}

TEST_F(AutoSpaceTest, StatisticsThatNothingUsesAreRefused) {
  using grpc::StatusCode;
  Open("s");
  EXPECT_FALSE(Open("raw", "raw").wants_statistics());
  const std::string blob = *StatsCalibration(Spec(), OnlyHeadZero());
  grpc::Status status = SendStatistics("raw", blob);
  EXPECT_EQ(status.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("its recipe is raw, not auto"));
  EXPECT_EQ(SendStatistics("nowhere", blob).error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(SendStatistics("s", "").error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(SendStatistics("s", blob.substr(1)).error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(SendStatistics("s", *FitCorrelated(Spec(), 1)).error_code(),
            StatusCode::INVALID_ARGUMENT)
      << "a calibration";
  KvSpec other = Spec();
  other.rope.theta *= 2;
  EXPECT_EQ(SendStatistics("s", *StatsCalibration(other, OnlyHeadZero())).error_code(),
            StatusCode::INVALID_ARGUMENT)
      << "another model's";
  EXPECT_TRUE(Open("s").wants_statistics());
}

// The server keeps mean queries beside statistics, and puts them into the tables that it fits.
TEST_F(AutoSpaceTest, MeanQueriesComeWithStatistics) {
  Open("s");
  ModelStats stats = OnlyHeadZero();
  stats.queries = std::make_shared<QueryMeans>(RandomMeans(Spec(), {0, 2}, 4));
  ASSERT_TRUE(SendStatistics("s", *StatsCalibration(Spec(), stats)).ok());
  Put("s", 0, 40);
  ASSERT_TRUE(Eventually([&] { return !Fitted("s").recipe().empty(); })) << Fitted("s").note();
  EXPECT_THAT(Fitted("s").recipe(), StartsWith("kvstow-cal("));
  size_t with_queries = 0;
  for (const auto& file : std::filesystem::directory_iterator(FittedFolder())) {
    std::ifstream in(file.path(), std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(in)), {});
    with_queries += ParseCalibration(AsBytes(bytes)).value()->Has(kQueryMeansSection);
  }
  EXPECT_EQ(with_queries, 2u) << "the statistics' file and the tables'";
}

TEST_F(AutoSpaceTest, NewStatisticsReplaceThoseBefore) {
  Open("s");
  ModelStats stats = OnlyHeadZero();
  for (const float gain : {0.1f, 0.2f, 0.3f}) {
    stats.gain_k[0] = gain;
    ASSERT_TRUE(SendStatistics("s", *StatsCalibration(Spec(), stats)).ok());
  }
  const std::filesystem::directory_iterator files(FittedFolder());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST(LeastFitTokens, AreTwoForEachValueOfALayer) {
  const auto least = [](uint32_t heads) {
    KvSpec spec = Spec();
    spec.kv_heads = heads;
    spec.head_dim_k = spec.head_dim_v = 128;
    return LeastFitTokens(spec);
  };
  EXPECT_EQ(least(1), 2048u);
  EXPECT_EQ(least(8), 2u * 2048);
  EXPECT_EQ(least(16), 2u * 4096);
  EXPECT_EQ(least(32), 2048u) << "no transform of so wide a layer is fitted";
}

TEST_F(AutoSpaceTest, ASampleSaysThatItIsFull) {
  StopServer();
  config_.fit_bytes = 0;
  StartServer();
  Open("s");
  Put("s", 0, 16);
  const FitSamplePlan plan = PlanFitSample(server_->store(), 1, {});
  EXPECT_EQ(plan.tokens + plan.held_out_tokens, 16u * kTokens);
  EXPECT_FALSE(plan.full);
  const FitSample all = ReadFitSample(server_->store(), plan);
  EXPECT_EQ(all.tokens, plan.tokens);
  EXPECT_EQ(all.held_out_tokens, plan.held_out_tokens);
  uint64_t bytes = 0;
  for (const auto* pages : {&all.fitted_on, &all.held_out}) {
    for (const FitPage& page : *pages) {
      bytes += page.header.size();
      for (const SharedBytes& body : page.bodies) bytes += body.size();
    }
  }
  const FitSamplePlan half = PlanFitSample(server_->store(), 1, {.bytes = bytes / 2});
  EXPECT_TRUE(half.full);
  EXPECT_LE(half.tokens + half.held_out_tokens, 8u * kTokens);
  EXPECT_EQ(half.held_out_tokens, all.held_out_tokens);
}

TEST_F(AutoSpaceTest, ThePromiseIsPartOfTheSpace) {
  const v1::OpenSpaceResponse space = Open("s", "auto(divergence=0.02)");
  EXPECT_EQ(space.fidelity(), v1::DENSE);
  EXPECT_EQ(Open("s", "auto(divergence=0.02)").fingerprint(), space.fingerprint());
  v1::OpenSpaceResponse out;
  for (const char* other : {"auto", "int8", "hot=int8,cold=kvstow", "auto(divergence=0.021)"}) {
    const grpc::Status status = TryOpen("s", other, out);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION) << other;
    EXPECT_THAT(status.error_message(), HasSubstr("recipe: auto(divergence=0.02) here"));
  }
  for (const char* wrong : {"auto()", "auto(divergence=2)", "auto(divergence=x)", "auto(step=1)",
                            "auto,int8", "auto,hot=int8", "automatic", "auto(divergence=0.01"}) {
    EXPECT_EQ(TryOpen("w", wrong, out).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << wrong;
  }
}

TEST_F(AutoSpaceTest, FormsThatNeedACalibrationHaveNoPlaceInAuto) {
  v1::OpenSpaceResponse out;
  for (const char* forms : {"hot=int8,cold=kvstow-cal(run=3)", "hot=kvstow-cal,cold=kvstow"}) {
    const grpc::Status status = TryOpen("s", absl::StrCat("auto,", forms), out);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("write cold=kvstow, or leave auto out"));
  }
}

TEST_F(AutoSpaceTest, AServerWithoutFitsSaysSo) {
  StopServer();
  config_.fit_bytes = 0;
  StartServer();
  EXPECT_FALSE(Open("s").wants_statistics());
  EXPECT_EQ(SendStatistics("s", *StatsCalibration(Spec(), OnlyHeadZero())).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  Put("s", 0, 40);
  EXPECT_TRUE(Eventually([&] { return !Fitted("s").note().empty(); }));
  EXPECT_THAT(Fitted("s").note(), HasSubstr("fit-bytes is 0"));
  MakeCold();
  EXPECT_THAT(RecipeOf("s", "p7"), StartsWith("planes(")) << "cold pages have the usual form";
}

}  // namespace
}  // namespace kvstow::testing
