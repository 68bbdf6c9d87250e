// Gets by runs of layers against a server that breaks, lies and stops between them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>

#include "tests/client/batch/layers.h"
#include "tests/client/fake_server.h"

namespace kvstow {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class LayerCallTest : public testing::Test {
 protected:
  void SetUp() override {
    client_ = Client::Connect({.address = server_->address()});
    const auto space = client_->OpenSpace({.name = "s", .spec = SmallSpec(), .recipe = "raw"});
    ASSERT_TRUE(space.ok()) << space.status();
    space_ = *space;
    ASSERT_THAT(OutcomesOf(client_->Put("s", prompt_.Puts()).get()), Each(PageOutcome::kStored));
    server_->faults().streams = 0;
  }

  std::unique_ptr<FakeServer> server_ = StartFakeServer("127.0.0.1:0");
  std::unique_ptr<Client> client_;
  SpaceInfo space_;
  const Prompt prompt_{SmallSpec(), 64 * 5 + 17, 1};
  Fetch fetch_{prompt_};
};

TEST_F(LayerCallTest, OneStreamBringsAllRuns) {
  const LayerGot got = GetLayers(*client_, space_, fetch_.gets, 1);
  EXPECT_THAT(LayersOf(got), ElementsAre(Pair(0, 1), Pair(1, 1), Pair(2, 1), Pair(3, 1)));
  EXPECT_THAT(OutcomesOf(got.results), Each(PageOutcome::kHit));
  EXPECT_EQ(fetch_.buffers, prompt_.pages);
  EXPECT_EQ(server_->faults().streams, 1);
}

TEST_F(LayerCallTest, ABrokenStreamGoesOnWithWhatHasNotCome) {
  for (const int replies : {1, 3, 7, 12, 20}) {
    Fetch fetch(prompt_);
    server_->faults().break_after_gets = replies;
    const LayerGot got = GetLayers(*client_, space_, fetch.gets, 1);
    ASSERT_THAT(LayersOf(got), ElementsAre(Pair(0, 1), Pair(1, 1), Pair(2, 1), Pair(3, 1)));
    for (const auto& run : got.runs) EXPECT_THAT(run.outcomes, Each(PageOutcome::kHit));
    EXPECT_THAT(OutcomesOf(got.results), Each(PageOutcome::kHit));
    EXPECT_EQ(fetch.buffers, prompt_.pages);
  }
}

TEST_F(LayerCallTest, APageThatLosesLevelsBetweenRunsIsAsGoodAsItsWorst) {
  server_->faults().worse_from_layer = 2;
  const LayerGot got = GetLayers(*client_, space_, fetch_.gets, 2);
  for (const GetResult& r : got.results) {
    EXPECT_EQ(r.outcome, PageOutcome::kHit);
    EXPECT_FALSE(r.exact);
    EXPECT_EQ(r.levels, 1u);
    EXPECT_EQ(r.levels_stored, 2u);
    EXPECT_EQ(r.estimated_error, 0.25);
    EXPECT_EQ(r.recipe, "worse");
  }
}

TEST_F(LayerCallTest, APageThatWasReplacedBetweenRunsIsAMiss) {
  server_->faults().other_from_layer = 3;
  const LayerGot got = GetLayers(*client_, space_, fetch_.gets, 1);
  for (size_t run = 0; run < 4; ++run) {
    EXPECT_THAT(got.runs[run].outcomes, Each(run < 3 ? PageOutcome::kHit : PageOutcome::kMiss));
  }
  EXPECT_THAT(OutcomesOf(got.results), Each(PageOutcome::kMiss));
  EXPECT_THAT(got.results[0].message, HasSubstr("replaced"));
  EXPECT_EQ(got.results[0].bytes, 0u);
}

TEST_F(LayerCallTest, BytesThatChangedOnTheWayAreCorrupt) {
  server_->faults().flip_a_bit = true;
  for (const uint32_t layers_per_run : {1u, 3u, 4u}) {
    const LayerGot got = GetLayers(*client_, space_, fetch_.gets, layers_per_run);
    EXPECT_THAT(OutcomesOf(got.results), Each(PageOutcome::kCorrupt)) << layers_per_run;
  }
}

TEST_F(LayerCallTest, BuffersThatAreNotAPageAreRefusedHereOrByWhatComes) {
  const size_t token = BytesPerToken(SmallSpec());
  fetch_.gets[0].out = fetch_.gets[0].out.first(100);
  fetch_.gets[1].out = {};
  fetch_.gets[2].out = fetch_.gets[2].out.first(63 * token);  // the page has 64
  fetch_.buffers[5].resize(18 * token);                       // and this one 17
  fetch_.gets[5].out = fetch_.buffers[5];
  const LayerGot got = GetLayers(*client_, space_, fetch_.gets, 2);
  EXPECT_EQ(got.runs.size(), 2u);
  constexpr auto kHit = PageOutcome::kHit, kNo = PageOutcome::kNotCompatible;
  EXPECT_THAT(OutcomesOf(got.results), ElementsAre(kNo, kNo, kNo, kHit, kHit, kNo));
  EXPECT_THAT(got.results[0].message, HasSubstr("100 bytes"));
  EXPECT_EQ(fetch_.buffers[4], prompt_.pages[4]);
}

// Nobody who waits for a run waits for ever.
TEST_F(LayerCallTest, EveryRunIsToldOfAlsoWithNothingToFetch) {
  EXPECT_EQ(GetLayers(*client_, space_, {}, 1).runs.size(), 4u);
  for (PageGet& get : fetch_.gets) get.out = {};
  const LayerGot got = GetLayers(*client_, space_, fetch_.gets, 3);
  EXPECT_THAT(LayersOf(got), ElementsAre(Pair(0, 3), Pair(3, 1)));
  EXPECT_THAT(OutcomesOf(got.results), Each(PageOutcome::kNotCompatible));
  server_->Kill();
  const LayerGot dead = GetLayers(*client_, space_, Fetch(prompt_).gets, 2);
  EXPECT_EQ(dead.runs.size(), 2u);
  EXPECT_THAT(OutcomesOf(dead.results), Each(PageOutcome::kUnavailable));
}

TEST_F(LayerCallTest, ADestroyedClientEndsRunsThatAreUnderWay) {
  for (const int held : {1, 2, 3}) {
    server_->faults().hold_from_layer = held;
    auto client = Client::Connect(
        {.address = server_->address(), .timeout = std::chrono::milliseconds(3'600'000)});
    Fetch fetch(prompt_);
    std::promise<void> first;
    std::vector<std::vector<PageOutcome>> runs;
    int done = 0;
    client->GetLayersAsync(
        space_, 0, fetch.gets, 1,
        [&](LayerRange layers, std::span<const GetResult> so_far) {
          EXPECT_EQ(layers.first, runs.size());
          runs.push_back(OutcomesOf(so_far));
          if (runs.size() == 1) first.set_value();
        },
        [&](const std::vector<GetResult>& results) {
          EXPECT_THAT(OutcomesOf(results), Each(PageOutcome::kUnavailable));
          ++done;
        });
    first.get_future().wait();
    client.reset();
    EXPECT_EQ(done, 1);
    ASSERT_EQ(runs.size(), 4u);
    EXPECT_THAT(runs[0], Each(PageOutcome::kHit));
    EXPECT_THAT(runs[3], Each(PageOutcome::kUnavailable));
  }
}

}  // namespace
}  // namespace kvstow
