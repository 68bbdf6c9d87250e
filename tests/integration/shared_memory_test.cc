// Pages through memory that a worker shares with kvstowd: what a caller sees is what streams give.
#include "base/shared_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "tests/client/batch/layers.h"
#include "tests/client/prompt.h"
#include "tests/integration/process.h"

namespace kvstow {
namespace {

class SharedMemoryTest : public ::testing::Test {
 protected:
  std::unique_ptr<Client> Connect(ClientOptions options = {}) {
    options.address = daemon_.address();
    return Client::Connect(options);
  }
  // Pages of a prompt in a buffer of the client's.
  struct Shared {
    std::unique_ptr<PageBuffer> buffer;
    std::vector<PagePut> puts;
    std::vector<PageGet> gets;
  };
  static Shared InBuffer(Client& client, const Prompt& prompt) {
    const size_t page = RoundUpToSharedPage(PageBytes(prompt.spec, prompt.spec.page_tokens));
    Shared out{.buffer = client.NewBuffer(page * prompt.pages.size()), .puts = prompt.Puts()};
    for (size_t p = 0; p < prompt.pages.size(); ++p) {
      const size_t used = prompt.pages[p].size();
      const bool last = p + 1 == prompt.pages.size();
      const auto place = out.buffer->bytes().subspan(p * page, last ? page : used);
      std::ranges::copy(prompt.pages[p], place.begin());
      out.puts[p].raw = place.first(used);
      out.gets.push_back({.key = prompt.keys[p], .out = place});
    }
    return out;
  }

  TempDir dir_;
  Daemon daemon_{
      "127.0.0.1:0",
      {"--host-bytes", "256MiB", "--local-socket", dir_.path("local"), "--local-bytes", "64MiB"}};
};

TEST_F(SharedMemoryTest, PagesAreWhatStreamsGive) {
  const KvSpec spec = SmallSpec();
  const Prompt prompt(spec, 19 * 64 + 32, 1);  // the last page ends at a shared page
  const auto by_stream = Connect({.shared_bytes = 0});
  const auto local = Connect({.shared_bytes = 16 << 20});
  for (const char* recipe : {"raw", "int8", "kvstow", "rotated8", "knorm(keep=0.6)|int8"}) {
    SCOPED_TRACE(recipe);
    const std::string space = absl::StrCat("s", absl::string_view(recipe).substr(0, 4));
    ASSERT_TRUE(
        local
            ->OpenSpace({.name = space,
                         .spec = spec,
                         .recipe = recipe,
                         .fidelity = absl::StartsWith(recipe, "knorm") ? Fidelity::kSparse
                                                                       : Fidelity::kUnspecified})
            .ok());
    Shared shared = InBuffer(*local, prompt);
    ASSERT_TRUE(shared.buffer->shared());
    ASSERT_THAT(OutcomesOf(local->Put(space, shared.puts).get()),
                testing::Each(PageOutcome::kStored));
    EXPECT_THAT(OutcomesOf(by_stream->Put(space, prompt.Puts()).get()),
                testing::Each(PageOutcome::kAlreadyThere));
    Fetch streamed(spec, prompt.keys);
    std::ranges::fill(shared.buffer->bytes(), 0xee);
    for (auto* gets : {&shared.gets, &streamed.gets}) {
      (*gets)[1].first_layer = 2;
      (*gets)[2].layer_count = 1;
      (*gets)[3].first_token = 30;
      (*gets)[4].token_count = 7;
      (*gets)[5].key = "none";
    }
    const auto a = by_stream->Get(space, 0, streamed.gets).get();
    const auto b = local->Get(space, 0, shared.gets).get();
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_EQ(b[i].outcome, i == 5 ? PageOutcome::kMiss : PageOutcome::kHit) << b[i].message;
      EXPECT_EQ(b[i].outcome, a[i].outcome);
      if (a[i].outcome != PageOutcome::kHit) continue;
      EXPECT_EQ(b[i].bytes, a[i].bytes);
      EXPECT_EQ(b[i].tokens, a[i].tokens);
      EXPECT_EQ(b[i].first_position, a[i].first_position);
      EXPECT_EQ(b[i].exact, a[i].exact);
      EXPECT_EQ(b[i].keep, a[i].keep);
      EXPECT_EQ(b[i].kept_share, a[i].kept_share);
      EXPECT_TRUE(std::equal(shared.gets[i].out.begin(), shared.gets[i].out.begin() + b[i].bytes,
                             streamed.buffers[i].begin()));
    }
  }
}

// Pages of many runs of layers, and one that is not decoded in place.
TEST_F(SharedMemoryTest, LargePagesToo) {
  KvSpec spec = SmallSpec();
  spec.layers = 24;
  spec.page_tokens = 256;
  const Prompt prompt(spec, 2 * 256, 9);
  const auto by_stream = Connect({.shared_bytes = 0});
  const auto local = Connect();
  for (const char* recipe : {"raw", "lossless", "int8", "kvstow"}) {
    SCOPED_TRACE(recipe);
    ASSERT_TRUE(local->OpenSpace({.name = recipe, .spec = spec, .recipe = recipe}).ok());
    Shared shared = InBuffer(*local, prompt);
    ASSERT_TRUE(shared.buffer->shared());
    ASSERT_THAT(OutcomesOf(local->Put(recipe, shared.puts).get()),
                testing::Each(PageOutcome::kStored));
    Fetch streamed(spec, prompt.keys);
    for (auto* gets : {&shared.gets, &streamed.gets}) (*gets)[1].first_layer = 5;
    std::ranges::fill(shared.buffer->bytes(), 0xee);
    ASSERT_THAT(OutcomesOf(by_stream->Get(recipe, 0, streamed.gets).get()),
                testing::Each(PageOutcome::kHit));
    const auto got = local->Get(recipe, 0, shared.gets).get();
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].outcome, PageOutcome::kHit) << got[i].message;
      EXPECT_TRUE(std::equal(shared.gets[i].out.begin(),
                             shared.gets[i].out.begin() + static_cast<std::ptrdiff_t>(got[i].bytes),
                             streamed.buffers[i].begin()));
    }
  }
}

// By runs of layers: where their bytes begin at shared pages, and where they do not.
TEST_F(SharedMemoryTest, RunsOfLayersToo) {
  KvSpec spec = SmallSpec();
  const Prompt prompt(spec, 7 * 64 + 24, 3);  // a layer of the last page is 12 KiB
  const auto client = Connect();
  for (const char* recipe : {"raw", "int8"}) {
    const auto space = client->OpenSpace({.name = recipe, .spec = spec, .recipe = recipe});
    ASSERT_TRUE(space.ok()) << space.status();
    Shared shared = InBuffer(*client, prompt);
    ASSERT_THAT(OutcomesOf(client->Put(recipe, shared.puts).get()),
                testing::Each(PageOutcome::kStored));
    Fetch streamed(prompt);
    ASSERT_THAT(OutcomesOf(client->Get(recipe, 0, streamed.gets).get()),
                testing::Each(PageOutcome::kHit));
    for (const size_t shift : {0u, 100u}) {
      SCOPED_TRACE(shift);
      const auto buffer = client->NewBuffer((prompt.pages.size() + 1) * prompt.pages[0].size());
      ASSERT_TRUE(buffer->shared());
      for (size_t p = 0; p < prompt.pages.size(); ++p) {
        shared.gets[p].out =
            buffer->bytes().subspan(p * prompt.pages[0].size() + shift, prompt.pages[p].size());
      }
      const LayerGot got = GetLayers(*client, *space, shared.gets, 1);
      EXPECT_EQ(got.runs.size(), 4u);
      for (size_t p = 0; p < prompt.pages.size(); ++p) {
        ASSERT_EQ(got.results[p].outcome, PageOutcome::kHit) << got.results[p].message;
        EXPECT_TRUE(std::ranges::equal(shared.gets[p].out, streamed.buffers[p]));
      }
    }
  }
}

// And a base level, before the page stands in its place.
TEST_F(SharedMemoryTest, BaseLevelsToo) {
  const Prompt prompt(SmallSpec(), 3 * 64 + 24, 4);
  const auto client = Connect();
  ASSERT_TRUE(client->OpenSpace({.name = "s", .spec = SmallSpec(), .recipe = "kvstow"}).ok());
  Shared shared = InBuffer(*client, prompt);
  for (size_t p = 0; p < prompt.pages.size(); ++p) {
    shared.gets[p].out = shared.gets[p].out.first(prompt.pages[p].size());
  }
  ASSERT_THAT(OutcomesOf(client->Put("s", shared.puts).get()), testing::Each(PageOutcome::kStored));
  Fetch base(prompt), whole(prompt);
  for (PageGet& get : base.gets) get.max_levels = 1;
  client->Get("s", 0, base.gets).get();
  client->Get("s", 0, whole.gets).get();
  ASSERT_NE(base.buffers, whole.buffers);
  const ProgressiveGot got = GetProgressive(*client, "s", shared.gets);
  EXPECT_EQ(got.base_bytes, base.buffers);
  for (size_t p = 0; p < whole.buffers.size(); ++p) {
    ASSERT_EQ(got.results[p].outcome, PageOutcome::kHit) << got.results[p].message;
    EXPECT_TRUE(std::ranges::equal(shared.gets[p].out, whole.buffers[p]));
  }
}

// A page that cannot go through the memory goes over a stream, and nobody notices.
TEST_F(SharedMemoryTest, BuffersOfAllKindsWork) {
  const KvSpec spec = SmallSpec();
  const Prompt prompt(spec, 64 * 4, 2);
  const auto client = Connect();
  ASSERT_TRUE(client->OpenSpace({.name = "s", .spec = spec, .recipe = "raw"}).ok());
  ASSERT_THAT(OutcomesOf(client->Put("s", prompt.Puts()).get()),
              testing::Each(PageOutcome::kStored));
  const size_t page = PageBytes(spec, spec.page_tokens);
  const auto buffer = client->NewBuffer(5 * page);
  ASSERT_TRUE(buffer->shared());
  std::vector<uint8_t> own(page);
  const std::vector<PageGet> gets = {
      {.key = prompt.keys[0], .out = buffer->bytes().subspan(100, page)},  // not at a page
      {.key = prompt.keys[1], .out = own},
      {.key = prompt.keys[2], .out = buffer->bytes().subspan(2 * page, page)}};
  for (size_t first = 0; first < gets.size(); ++first) {
    const std::vector<PageGet> some(gets.begin() + first, gets.end());
    ASSERT_THAT(OutcomesOf(client->Get("s", 0, some).get()), testing::Each(PageOutcome::kHit));
    for (size_t i = first; i < gets.size(); ++i) {
      EXPECT_TRUE(std::ranges::equal(gets[i].out, prompt.pages[i])) << i;
    }
  }
  // More than the server has: the process's own memory.
  EXPECT_FALSE(client->NewBuffer(size_t{60} << 20)->shared() &&
               client->NewBuffer(60 << 20)->shared());
}

TEST_F(SharedMemoryTest, AServerThatDiesIsAMissAndComesBack) {
  const KvSpec spec = SmallSpec();
  const Prompt prompt(spec, 64 * 4, 3);
  const auto client = Connect({.timeout = std::chrono::seconds(20)});
  ASSERT_TRUE(client->OpenSpace({.name = "s", .spec = spec, .recipe = "raw"}).ok());
  Shared shared = InBuffer(*client, prompt);
  ASSERT_TRUE(shared.buffer->shared());
  ASSERT_THAT(OutcomesOf(client->Put("s", shared.puts).get()), testing::Each(PageOutcome::kStored));
  daemon_.Kill();
  EXPECT_THAT(OutcomesOf(client->Get("s", 0, shared.gets).get()),
              testing::Each(PageOutcome::kUnavailable));
  EXPECT_FALSE(shared.buffer->shared());
  std::ranges::fill(shared.buffer->bytes(), 1);  // the memory is still there

  daemon_.Start();
  ASSERT_TRUE(client->OpenSpace({.name = "s", .spec = spec, .recipe = "raw"}).ok());
  EXPECT_THAT(OutcomesOf(client->Get("s", 0, shared.gets).get()),
              testing::Each(PageOutcome::kMiss));
  Shared again = InBuffer(*client, prompt);
  EXPECT_TRUE(again.buffer->shared());
  EXPECT_THAT(OutcomesOf(client->Put("s", again.puts).get()), testing::Each(PageOutcome::kStored));
}

TEST_F(SharedMemoryTest, AFrozenServerIsAMissAtTheDeadlineAndWritesNothingLater) {
  const KvSpec spec = SmallSpec();
  const Prompt prompt(spec, 64 * 4, 4);
  const auto client = Connect({.timeout = std::chrono::milliseconds(700)});
  ASSERT_TRUE(client->OpenSpace({.name = "s", .spec = spec, .recipe = "raw"}).ok());
  Shared shared = InBuffer(*client, prompt);
  ASSERT_TRUE(shared.buffer->shared());
  ASSERT_THAT(OutcomesOf(client->Put("s", shared.puts).get()), testing::Each(PageOutcome::kStored));
  daemon_.Signal(SIGSTOP);
  EXPECT_THAT(OutcomesOf(client->Get("s", 0, shared.gets).get()),
              testing::Each(PageOutcome::kUnavailable));
  std::ranges::fill(shared.buffer->bytes(), 0xaa);
  daemon_.Signal(SIGCONT);
  // It finds the requests, answers nobody and then this.
  Fetch fetch(spec, prompt.keys);
  for (int tries = 0; tries < 20; ++tries) {
    if (client->Get("s", 0, fetch.gets).get()[0].outcome == PageOutcome::kHit) break;
  }
  EXPECT_EQ(fetch.buffers[0], prompt.pages[0]);
  EXPECT_TRUE(std::ranges::all_of(shared.buffer->bytes(), [](uint8_t b) { return b == 0xaa; }));
}

TEST_F(SharedMemoryTest, BuffersOutliveTheirClient) {
  std::unique_ptr<PageBuffer> buffer;
  {
    const auto client = Connect();
    buffer = client->NewBuffer(1 << 20);
    ASSERT_TRUE(buffer->shared());
  }
  std::ranges::fill(buffer->bytes(), 1);
  EXPECT_FALSE(buffer->shared());
}

TEST_F(SharedMemoryTest, ManyThreadsShareOneSession) {
  const KvSpec spec = SmallSpec();
  const auto client = Connect();
  ASSERT_TRUE(client->OpenSpace({.name = "s", .spec = spec, .recipe = "raw"}).ok());
  std::vector<std::thread> workers;
  for (int w = 0; w < 8; ++w) {
    workers.emplace_back([&, w] {
      const Prompt prompt(spec, 64 * 8, 100 + w);
      Shared shared = InBuffer(*client, prompt);
      EXPECT_TRUE(shared.buffer->shared());
      EXPECT_THAT(OutcomesOf(client->Put("s", shared.puts).get()),
                  testing::Each(PageOutcome::kStored));
      for (int round = 0; round < 20; ++round) {
        std::ranges::fill(shared.buffer->bytes(), 0);
        ASSERT_THAT(OutcomesOf(client->Get("s", 0, shared.gets).get()),
                    testing::Each(PageOutcome::kHit));
        for (size_t p = 0; p < prompt.pages.size(); ++p) {
          ASSERT_TRUE(std::equal(prompt.pages[p].begin(), prompt.pages[p].end(),
                                 shared.gets[p].out.begin()));
        }
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
}

}  // namespace
}  // namespace kvstow
