// Pages on a GPU, played by the host on both sides of a real server: what a caller sees is what
// streams give, whatever way they went. No address of the "GPU" can be dereferenced.
#include <algorithm>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/client/transport/gpu_fixture.h"

namespace kvstow {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

TEST_F(GpuPagesTest, AreWhatStreamsGive) {
  Start();
  const auto client = ConnectGpu();
  int n = 0;
  for (const char* recipe :
       {"raw", "lossless", "int8", "rotated8", "kvstow", "knorm(keep=0.6)|int8"}) {
    SCOPED_TRACE(recipe);
    const std::string space = absl::StrCat("s", ++n);
    Open(*client, space, recipe);
    ExpectWhatStreamsGive(*client, space);
  }
  EXPECT_EQ(gpu_->within, 2 * 6 * n) << "every page was copied within the GPU, once each way";
  EXPECT_EQ(gpu_->to_host + gpu_->to_device, 0);
}

TEST_F(GpuPagesTest, PartsAndMissesToo) {
  Start();
  const auto client = ConnectGpu(), streams = Connect({.shared_bytes = 0});
  const Prompt prompt(SmallSpec(), 6 * 64, 1);
  for (const char* recipe : {"raw", "int8"}) {
    Open(*client, recipe, recipe);
    OnGpu on_gpu(prompt);
    ASSERT_THAT(OutcomesOf(client->Put(recipe, on_gpu.puts).get()), Each(PageOutcome::kStored));
    Fetch streamed(prompt);
    for (auto* gets : {&on_gpu.gets, &streamed.gets}) {
      (*gets)[1].first_layer = 2;
      (*gets)[2].layer_count = 1;
      (*gets)[3].first_token = 30;
      (*gets)[4].key = "none";
      (*gets)[5].out = (*gets)[5].out.first(100);  // too small
    }
    const auto a = streams->Get(recipe, 0, streamed.gets).get();
    const auto b = client->Get(recipe, 0, on_gpu.gets).get();
    for (size_t p = 0; p < a.size(); ++p) {
      SCOPED_TRACE(p);
      EXPECT_EQ(a[p].outcome, b[p].outcome) << b[p].message;
      EXPECT_EQ(a[p].bytes, b[p].bytes);
      if (a[p].outcome != PageOutcome::kHit) continue;
      const auto bytes = static_cast<std::ptrdiff_t>(a[p].bytes);
      EXPECT_TRUE(std::equal(on_gpu.room[p].begin(), on_gpu.room[p].begin() + bytes,
                             streamed.buffers[p].begin()));
      EXPECT_TRUE(std::all_of(on_gpu.room[p].begin() + bytes, on_gpu.room[p].end(),
                              [](uint8_t b) { return b == 0xee; }));
    }
    EXPECT_EQ(b[4].outcome, PageOutcome::kMiss);
    EXPECT_EQ(b[5].outcome, PageOutcome::kNotCompatible);
  }
}

TEST_F(GpuPagesTest, BaseLevelsFirst) {
  Start();
  const auto client = ConnectGpu(), streams = Connect({.shared_bytes = 0});
  const Prompt prompt(SmallSpec(), 2 * 64, 1);
  Open(*client, "s", "rotated8");
  OnGpu on_gpu(prompt);
  ASSERT_THAT(OutcomesOf(client->Put("s", on_gpu.puts).get()), Each(PageOutcome::kStored));
  Fetch base(prompt), whole(prompt);
  for (PageGet& get : base.gets) get.max_levels = 1;
  streams->Get("s", 0, base.gets).get();
  streams->Get("s", 0, whole.gets).get();
  std::vector<std::vector<uint8_t>> came;
  std::promise<std::vector<GetResult>> done;
  client->GetProgressiveAsync(
      "s", 0, on_gpu.gets, [&](std::span<const GetResult>) { came = on_gpu.room; },
      [&](std::vector<GetResult> results) { done.set_value(std::move(results)); });
  EXPECT_THAT(OutcomesOf(done.get_future().get()), Each(PageOutcome::kHit));
  EXPECT_EQ(came, base.buffers);
  EXPECT_EQ(on_gpu.room, whole.buffers);
}

TEST_F(GpuPagesTest, PagesOfTheHostMayBeInTheSameBatch) {
  Start();
  const auto client = ConnectGpu();
  Open(*client, "s", "raw");
  const Prompt prompt(SmallSpec(), 4 * 64, 1);
  OnGpu on_gpu(prompt);
  for (const size_t p : {0u, 2u}) on_gpu.puts[p] = prompt.Puts()[p];
  ASSERT_THAT(OutcomesOf(client->Put("s", on_gpu.puts).get()), Each(PageOutcome::kStored));
  Fetch host(prompt);
  for (const size_t p : {1u, 2u}) on_gpu.gets[p] = host.gets[p];
  ASSERT_THAT(OutcomesOf(client->Get("s", 0, on_gpu.gets).get()), Each(PageOutcome::kHit));
  for (const size_t p : {1u, 2u}) EXPECT_EQ(host.buffers[p], prompt.pages[p]);
  for (const size_t p : {0u, 3u}) EXPECT_EQ(on_gpu.room[p], prompt.pages[p]);
}

// Pages that cannot use the shared memory take longer, and nothing else changes.
TEST_F(GpuPagesTest, WithoutSharedMemoryTheyGoThroughTheHost) {
  Start();
  const auto expect = [&](const char* why, ClientOptions options) {
    SCOPED_TRACE(why);
    gpu_->within = gpu_->to_host = gpu_->to_device = 0;
    const auto client = ConnectGpu(options);
    const std::string space = absl::StrCat("s", seed_);
    Open(*client, space, "int8");
    ExpectWhatStreamsGive(*client, space);
    EXPECT_EQ(gpu_->within, 0);
    EXPECT_EQ(gpu_->to_host, 6);
    EXPECT_EQ(gpu_->to_device, 6);
  };
  expect("none is wanted", {.gpu_shared_bytes = 0});
  expect("a page has more", {.gpu_shared_bytes = 4096});
  gpu_->cannot_map = true;
  expect("it cannot be mapped", {});
  gpu_->cannot_map = false;
  gpu_->cannot_copy = true;
  expect("the GPU does not copy within itself", {});
  gpu_->cannot_copy = false;

  ServersGpu another("another GPU here");
  options_.gpu_sharing = &another;
  server_.reset();
  Start();
  expect("the server is on another GPU", {});
  config_.local_gpu_bytes = 0;
  server_.reset();
  Start();
  expect("the server shares none", {});
  config_.local_socket.clear();
  server_.reset();
  Start();
  expect("the server has no local sessions", {});
}

TEST_F(GpuPagesTest, AWaveAfterTheOtherGoesThroughLittleMemory) {
  Start();
  const uint64_t page = PageBytes(SmallSpec(), 64);
  const auto client = ConnectGpu({.gpu_shared_bytes = 2 * page});
  Open(*client, "s", "int8");
  ExpectWhatStreamsGive(*client, "s");
  EXPECT_EQ(gpu_->within, 12);
  EXPECT_EQ(gpu_->to_host + gpu_->to_device, 0);
}

TEST_F(GpuPagesTest, ManyThreadsShareTheMemory) {
  Start();
  const auto client = ConnectGpu({.gpu_shared_bytes = 3 * PageBytes(SmallSpec(), 64)});
  Open(*client, "s", "raw");
  std::vector<std::thread> workers;
  for (int w = 0; w < 6; ++w) {
    workers.emplace_back([&, w] {
      const Prompt prompt(SmallSpec(), 64 * 6, 100 + w);
      OnGpu on_gpu(prompt);
      EXPECT_THAT(OutcomesOf(client->Put("s", on_gpu.puts).get()), Each(PageOutcome::kStored));
      for (int round = 0; round < 10; ++round) {
        for (auto& room : on_gpu.room) std::ranges::fill(room, 0);
        ASSERT_THAT(OutcomesOf(client->Get("s", 0, on_gpu.gets).get()), Each(PageOutcome::kHit));
        ASSERT_EQ(on_gpu.room, prompt.pages);
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
}

TEST_F(GpuPagesTest, CallsThatDoNotTakeThemSaySo) {
  Start();
  const auto client = ConnectGpu(), without = Connect();
  const auto space = client->OpenSpace({.name = "s", .spec = SmallSpec(), .recipe = "raw"});
  ASSERT_TRUE(space.ok());
  const Prompt prompt(SmallSpec(), 2 * 64, 1);
  OnGpu on_gpu(prompt);
  const auto expect = [](const auto& results, PageOutcome outcome) {
    ASSERT_EQ(results.size(), 2u);
    for (const auto& result : results) {
      EXPECT_EQ(result.outcome, outcome);
      EXPECT_THAT(result.message, HasSubstr("on_gpu"));
    }
  };
  // Over a stream, and over a direct connection, which comes after the first calls.
  expect(without->Put("s", on_gpu.puts).get(), PageOutcome::kRefused);
  expect(without->Get("s", 0, on_gpu.gets).get(), PageOutcome::kNotCompatible);
  Fetch fetch(prompt);
  for (int i = 0; i < 50; ++i) without->Get("s", 0, fetch.gets).get();
  expect(without->Put("s", on_gpu.puts).get(), PageOutcome::kRefused);
  expect(without->Get("s", 0, on_gpu.gets).get(), PageOutcome::kNotCompatible);
  expect(client->GetSummaries("s", 0, on_gpu.gets).get(), PageOutcome::kNotCompatible);
  std::promise<std::vector<GetResult>> layers;
  client->GetLayersAsync(*space, 0, on_gpu.gets, 1, nullptr, [&](std::vector<GetResult> results) {
    layers.set_value(std::move(results));
  });
  expect(layers.get_future().get(), PageOutcome::kNotCompatible);
  std::promise<std::vector<PutResult>> put;
  const auto filling = client->PutLayers(*space, on_gpu.puts, [&](std::vector<PutResult> results) {
    put.set_value(std::move(results));
  });
  expect(put.get_future().get(), PageOutcome::kRefused);
}

}  // namespace
}  // namespace kvstow
