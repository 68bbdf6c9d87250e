// Pages on a GPU when something is late or fails: events, clients, servers, the GPU itself.
#include <algorithm>
#include <future>
#include <thread>
#include <vector>

#include "tests/client/transport/gpu_fixture.h"

namespace kvstow {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using GpuFaultsTest = GpuPagesTest;

TEST_F(GpuFaultsTest, NothingIsTouchedBeforeItsEvent) {
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

TEST_F(GpuFaultsTest, AnEventThatNeverPassesEndsAtTheDeadline) {
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

TEST_F(GpuFaultsTest, AClientThatGoesWaitsForNoEvent) {
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
TEST_F(GpuFaultsTest, ALateServerWritesNothingOfTheWorkers) {
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

TEST_F(GpuFaultsTest, AServerThatDiesIsAMissAndComesBack) {
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

TEST_F(GpuFaultsTest, AGpuThatFailsIsAnAnswer) {
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

}  // namespace
}  // namespace kvstow
