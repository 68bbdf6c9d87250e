// Puts of pages that are still being computed, against a server that checks what it gets.
#include "client/layer_put.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "tests/client/batch/layers.h"
#include "tests/client/fake_server.h"

namespace kvstow {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;

class LayerPutTest : public testing::Test {
 protected:
  void SetUp() override { Connect({}); }
  void Connect(ClientOptions options) {
    options.address = server_->address();
    client_ = Client::Connect(options);
    const auto space = client_->OpenSpace({.name = "s", .spec = prompt_.spec, .recipe = "raw"});
    ASSERT_TRUE(space.ok()) << space.status();
    space_ = *space;
  }
  void ExpectStored() {
    Fetch fetch(prompt_);
    EXPECT_THAT(OutcomesOf(client_->Get("s", 0, fetch.gets).get()), Each(PageOutcome::kHit));
    EXPECT_EQ(fetch.buffers, prompt_.pages);
  }

  std::unique_ptr<FakeServer> server_ = StartFakeServer("127.0.0.1:0");
  std::unique_ptr<Client> client_;
  SpaceInfo space_;
  const Prompt prompt_{SmallSpec(), 64 * 19 + 17, 1};
};

TEST_F(LayerPutTest, ABrokenStreamBeginsItsPagesAgain) {
  for (const bool at_once : {false, true}) {
    server_->faults().break_after_pages = 1;
    Filling filling(prompt_);
    const auto put = client_->PutLayers(space_, filling.puts, filling.Done());
    for (uint32_t layers = at_once ? 4 : 1; layers <= 4; ++layers) filling.Fill(*put, layers);
    EXPECT_THAT(OutcomesOf(filling.results.get_future().get()),
                Each(AnyOf(PageOutcome::kStored, PageOutcome::kAlreadyThere)));
    ExpectStored();
  }
}

TEST_F(LayerPutTest, LayersMayBeLargerThanChunksAndFilledInAnySteps) {
  Connect({.chunk_bytes = 5000});
  Filling filling(prompt_);
  const auto put = client_->PutLayers(space_, filling.puts, filling.Done());
  filling.Fill(*put, 3);
  put->Filled(1);  // nothing new
  filling.Fill(*put, 4);
  put->Filled(9);
  EXPECT_THAT(OutcomesOf(filling.results.get_future().get()), Each(PageOutcome::kStored));
  ExpectStored();
}

TEST_F(LayerPutTest, PagesWithColumnsAreRefusedAndTheOthersAreStored) {
  Filling filling(prompt_);
  filling.puts[2].columns.push_back({.name = "attn_sum", .queries = 1});
  filling.puts[4].key = "";
  const auto put = client_->PutLayers(space_, filling.puts, filling.Done());
  filling.Fill(*put, 4);
  const auto results = filling.results.get_future().get();
  for (size_t p = 0; p < results.size(); ++p) {
    EXPECT_EQ(results[p].outcome, p == 2 || p == 4 ? PageOutcome::kRefused : PageOutcome::kStored);
  }
  EXPECT_THAT(results[2].message, HasSubstr("columns"));
}

TEST_F(LayerPutTest, NoPagesAreDoneAtOnce) {
  std::promise<size_t> pages;
  const auto put = client_->PutLayers(
      space_, {}, [&](const std::vector<PutResult>& results) { pages.set_value(results.size()); });
  EXPECT_EQ(pages.get_future().get(), 0u);
}

TEST_F(LayerPutTest, AWorkerThatStallsLosesItsPutAtTheDeadline) {
  Connect({.timeout = std::chrono::milliseconds(200)});
  Filling filling(prompt_);
  const auto put = client_->PutLayers(space_, filling.puts, filling.Done());
  filling.Fill(*put, 1);
  EXPECT_THAT(OutcomesOf(filling.results.get_future().get()), Each(PageOutcome::kUnavailable));
  filling.Fill(*put, 4);
}

}  // namespace
}  // namespace kvstow
