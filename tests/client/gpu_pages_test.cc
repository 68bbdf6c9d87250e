// Pages on a GPU, played by the host on both sides of a real server: what a caller sees is what
// streams give, whatever way they went. No address of the "GPU" can be dereferenced.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "client/client.h"
#include "kernels/host_sharing.h"
#include "service/server.h"
#include "tests/client/played_gpus.h"
#include "tests/client/prompt.h"

namespace kvstow {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

class GpuPagesTest : public ::testing::Test {
 protected:
  GpuPagesTest() {
    EXPECT_TRUE(SetUpLog("error", "text").ok());
    std::string name = (std::filesystem::temp_directory_path() / "kvstow_gpu_XXXXXX").string();
    folder_ = mkdtemp(name.data());
    config_.listen = "127.0.0.1:0";
    config_.http_listen = "off";
    config_.host_bytes = 64 << 20;
    config_.local_socket = (folder_ / "local").string();
    config_.local_bytes = 64 << 20;
    config_.local_gpu_bytes = 64 << 20;
    options_.gpu = &HostDevice();
    options_.gpu_sharing = &servers_gpu_;
  }
  ~GpuPagesTest() override {
    servers_gpu_.LetGo();
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Start() {
    auto server = Server::Start(config_, options_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    config_.listen = server_->address();  // again, when it starts again
  }
  std::unique_ptr<Client> Connect(ClientOptions options = {}) {
    options.address = server_->address();
    return Client::Connect(options);
  }
  std::unique_ptr<Client> ConnectGpu(ClientOptions options = {}) {
    options.gpu = gpu_;
    return Connect(options);
  }

  // A prompt's pages in the GPU's memory, and room for them.
  struct OnGpu {
    std::vector<std::vector<uint8_t>> pages, room;
    std::vector<PagePut> puts;
    std::vector<PageGet> gets;

    explicit OnGpu(const Prompt& prompt)
        : pages(prompt.pages), room(prompt.pages.size()), puts(prompt.Puts()) {
      for (size_t p = 0; p < pages.size(); ++p) {
        puts[p].raw = AsDeviceBytes(pages[p]);
        puts[p].on_gpu = true;
        room[p].assign(pages[p].size(), 0xee);
        gets.push_back({.key = prompt.keys[p], .out = AsDeviceBytes(room[p]), .on_gpu = true});
      }
    }
  };
  // Puts and gets a prompt, and compares with streams.
  void ExpectWhatStreamsGive(Client& client, const std::string& space) {
    const Prompt prompt(SmallSpec(), 5 * 64 + 24, ++seed_);
    OnGpu on_gpu(prompt);
    ASSERT_THAT(OutcomesOf(client.Put(space, on_gpu.puts).get()), Each(PageOutcome::kStored));
    const auto streams = Connect({.shared_bytes = 0});
    EXPECT_THAT(OutcomesOf(streams->Put(space, prompt.Puts()).get()),
                Each(PageOutcome::kAlreadyThere));
    Fetch streamed(prompt);
    const auto a = streams->Get(space, 0, streamed.gets).get();
    const auto b = client.Get(space, 0, on_gpu.gets).get();
    for (size_t p = 0; p < a.size(); ++p) {
      ASSERT_EQ(a[p].outcome, PageOutcome::kHit) << a[p].message;
      ASSERT_EQ(b[p].outcome, PageOutcome::kHit) << b[p].message;
      EXPECT_EQ(a[p].bytes, b[p].bytes);
      EXPECT_EQ(a[p].keep, b[p].keep);
      EXPECT_EQ(a[p].exact, b[p].exact);
      EXPECT_EQ(a[p].raw_digest, b[p].raw_digest);
      EXPECT_EQ(on_gpu.room[p], streamed.buffers[p]);
    }
  }
  void Open(Client& client, const std::string& space, const std::string& recipe) {
    const bool sparse = absl::StrContains(recipe, "keep");
    ASSERT_TRUE(client
                    .OpenSpace({.name = space,
                                .spec = SmallSpec(),
                                .recipe = recipe,
                                .fidelity = sparse ? Fidelity::kSparse : Fidelity::kUnspecified})
                    .ok());
  }

  int seed_ = 0;
  std::filesystem::path folder_;
  const std::shared_ptr<WorkersGpu> gpu_ = std::make_shared<WorkersGpu>();
  ServersGpu servers_gpu_{kUuid};
  Config config_;
  ServerOptions options_;
  std::unique_ptr<Server> server_;
};

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

// What keeps pages from the shared memory is nobody's concern but the clock's.
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

TEST_F(GpuPagesTest, NothingIsTouchedBeforeItsEvent) {
  Start();
  const auto client = ConnectGpu();
  Open(*client, "s", "raw");
  const Prompt prompt(SmallSpec(), 2 * 64, 1);
  OnGpu on_gpu(prompt);
  HostEvent computed = false, read = false;
  std::ranges::fill(on_gpu.pages[0], 0);  // is still to be computed
  on_gpu.puts[0].ready = &computed;
  auto put = client->Put("s", on_gpu.puts);
  // The other page does not wait.
  Fetch fetch(prompt);
  const auto streams = Connect({.shared_bytes = 0});
  while (streams->Get("s", 0, fetch.gets).get()[1].outcome != PageOutcome::kHit) {
    std::this_thread::yield();
  }
  EXPECT_EQ(streams->Get("s", 0, fetch.gets).get()[0].outcome, PageOutcome::kMiss);
  std::ranges::copy(prompt.pages[0], on_gpu.pages[0].begin());
  computed = true;
  ASSERT_THAT(OutcomesOf(put.get()), Each(PageOutcome::kStored));

  on_gpu.gets[0].ready = &read;
  const int before = gpu_->within;
  auto get = client->Get("s", 0, on_gpu.gets);
  while (gpu_->within == before) std::this_thread::yield();  // until the other page has come
  EXPECT_THAT(on_gpu.room[0], Each(0xee));
  read = true;
  ASSERT_THAT(OutcomesOf(get.get()), Each(PageOutcome::kHit));
  EXPECT_EQ(on_gpu.room, prompt.pages);
}

TEST_F(GpuPagesTest, AnEventThatNeverPassesEndsAtTheDeadline) {
  Start();
  Open(*Connect(), "s", "raw");
  const auto client = ConnectGpu({.timeout = std::chrono::milliseconds(300)});
  OnGpu on_gpu(Prompt(SmallSpec(), 64, 1));
  HostEvent never = false;
  on_gpu.puts[0].ready = on_gpu.gets[0].ready = &never;
  const PutResult put = client->Put("s", on_gpu.puts).get()[0];
  EXPECT_EQ(put.outcome, PageOutcome::kUnavailable);
  EXPECT_THAT(put.message, HasSubstr("event"));
  const GetResult get = client->Get("s", 0, on_gpu.gets).get()[0];
  EXPECT_EQ(get.outcome, PageOutcome::kUnavailable);
  EXPECT_THAT(get.message, HasSubstr("event"));
}

TEST_F(GpuPagesTest, AClientThatGoesWaitsForNoEvent) {
  Start();
  OnGpu on_gpu(Prompt(SmallSpec(), 64, 1));
  HostEvent never = false;
  on_gpu.puts[0].ready = &never;
  std::future<std::vector<PutResult>> put;
  {
    const auto client = ConnectGpu({.timeout = std::chrono::hours(1)});
    put = client->Put("s", on_gpu.puts);
  }
  EXPECT_EQ(put.get()[0].outcome, PageOutcome::kUnavailable);
}

// It was asked for, and only decodes it long after the worker gave up.
TEST_F(GpuPagesTest, ALateServerWritesNothingOfTheWorkers) {
  Start();
  const auto streams = Connect({.shared_bytes = 0});
  Open(*streams, "s", "raw");
  const Prompt prompt(SmallSpec(), 64, 1);
  ASSERT_THAT(OutcomesOf(streams->Put("s", prompt.Puts()).get()), Each(PageOutcome::kStored));
  const auto client = ConnectGpu({.timeout = std::chrono::milliseconds(700)});
  OnGpu on_gpu(prompt);
  servers_gpu_.Hold();
  do {  // a busy machine may not get there in time at first
    on_gpu.room[0].assign(prompt.pages[0].size(), 0xee);
    const GetResult result = client->Get("s", 0, on_gpu.gets).get()[0];
    if (result.outcome != PageOutcome::kHit) {
      EXPECT_EQ(result.outcome, PageOutcome::kUnavailable);
    }
  } while (!servers_gpu_.IsHolding());
  // The page is the caller's again.
  std::ranges::fill(on_gpu.room[0], 0xaa);
  servers_gpu_.LetGo();
  servers_gpu_.AwaitNoneHeld();
  EXPECT_THAT(on_gpu.room[0], Each(0xaa));
  // A new session, and the same page.
  while (client->Get("s", 0, on_gpu.gets).get()[0].outcome != PageOutcome::kHit) {
    std::this_thread::yield();
  }
  EXPECT_EQ(on_gpu.room[0], prompt.pages[0]);
}

TEST_F(GpuPagesTest, AServerThatDiesIsAMissAndComesBack) {
  Start();
  const auto client = ConnectGpu({.timeout = std::chrono::seconds(20)});
  Open(*client, "s", "int8");
  const Prompt prompt(SmallSpec(), 2 * 64, 1);
  OnGpu on_gpu(prompt);
  ASSERT_THAT(OutcomesOf(client->Put("s", on_gpu.puts).get()), Each(PageOutcome::kStored));
  server_.reset();
  EXPECT_THAT(OutcomesOf(client->Get("s", 0, on_gpu.gets).get()), Each(PageOutcome::kUnavailable));
  EXPECT_THAT(on_gpu.room[0], Each(0xee));
  Start();
  Open(*client, "s", "int8");
  EXPECT_THAT(OutcomesOf(client->Get("s", 0, on_gpu.gets).get()), Each(PageOutcome::kMiss));
  EXPECT_THAT(OutcomesOf(client->Put("s", on_gpu.puts).get()), Each(PageOutcome::kStored));
  EXPECT_THAT(OutcomesOf(client->Get("s", 0, on_gpu.gets).get()), Each(PageOutcome::kHit));
}

TEST_F(GpuPagesTest, AGpuThatFailsIsAnAnswer) {
  Start();
  const auto client = ConnectGpu({.gpu_shared_bytes = 0});
  Open(*client, "s", "raw");
  const Prompt prompt(SmallSpec(), 2 * 64, 1);
  OnGpu on_gpu(prompt);
  ASSERT_THAT(OutcomesOf(client->Put("s", on_gpu.puts).get()), Each(PageOutcome::kStored));
  gpu_->cannot_at_all = true;
  EXPECT_THAT(OutcomesOf(client->Put("s", on_gpu.puts).get()), Each(PageOutcome::kUnavailable));
  const auto got = client->Get("s", 0, on_gpu.gets).get();
  EXPECT_THAT(OutcomesOf(got), Each(PageOutcome::kUnavailable));
  EXPECT_THAT(got[0].message, HasSubstr("fell off the bus"));
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
