// What client/client.h promises, run against any server: include this in one source of a test
// program and instantiate ClientConformance with a factory of servers.
//
//   INSTANTIATE_TEST_SUITE_P(Tcp, ClientConformance, testing::Values(ServerCase{"server",
//   StartOverTcp}));
#ifndef KVSTOW_TESTS_CONFORMANCE_CLIENT_CONFORMANCE_H_
#define KVSTOW_TESTS_CONFORMANCE_CLIENT_CONFORMANCE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "tests/client/batch/layers.h"
#include "tests/client/prompt.h"

namespace kvstow {

struct ServerCase {
  const char* name;  // in the names of the tests
  std::unique_ptr<ServerUnderTest> (*start)();
};
inline void PrintTo(const ServerCase& c, std::ostream* out) { *out << c.name; }

class ClientConformance : public testing::TestWithParam<ServerCase> {
 protected:
  void SetUp() override { client_ = Connect(); }

  std::unique_ptr<Client> Connect(ClientOptions options = {}) {
    options.address = server_->address();
    return Client::Connect(options);
  }
  void Open(const std::string& space, const KvSpec& spec) {
    const auto info = client_->OpenSpace({.name = space, .spec = spec, .recipe = "raw"});
    ASSERT_TRUE(info.ok()) << info.status();
  }
  void ExpectWholeHit(const Prompt& prompt, const Fetch& fetch,
                      const std::vector<GetResult>& results) {
    ASSERT_EQ(results.size(), prompt.pages.size());
    for (size_t p = 0; p < results.size(); ++p) {
      ASSERT_EQ(results[p].outcome, PageOutcome::kHit) << "page " << p << results[p].message;
      ASSERT_EQ(results[p].bytes, prompt.pages[p].size()) << "page " << p;
      EXPECT_TRUE(
          std::equal(prompt.pages[p].begin(), prompt.pages[p].end(), fetch.buffers[p].begin()))
          << "page " << p << " came back with other bytes";
      EXPECT_EQ(results[p].first_position, p * prompt.spec.page_tokens);
      EXPECT_EQ(results[p].tokens, prompt.pages[p].size() / BytesPerToken(prompt.spec));
      EXPECT_TRUE(results[p].exact);
    }
  }

  std::unique_ptr<ServerUnderTest> server_ = GetParam().start();
  std::unique_ptr<Client> client_;
};

TEST_P(ClientConformance, SpaceIsMadeFoundAndComparedByItsSpec) {
  EXPECT_TRUE(absl::IsNotFound(client_->FindSpace("s").status()));
  const auto made = client_->OpenSpace({.name = "s", .spec = SmallSpec(), .recipe = "raw"});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(made->created);
  EXPECT_EQ(made->fingerprint.size(), 16u);
  const auto found = client_->FindSpace("s");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(found->created);
  EXPECT_EQ(found->spec, SmallSpec());
  EXPECT_EQ(found->fingerprint, made->fingerprint);
  KvSpec other = SmallSpec();
  other.layers = 5;
  const auto differs = client_->OpenSpace({.name = "s", .spec = other, .recipe = "raw"});
  EXPECT_TRUE(absl::IsFailedPrecondition(differs.status())) << differs.status();
  EXPECT_THAT(differs.status().message(), testing::HasSubstr("layers"));
}

TEST_P(ClientConformance, PagesComeBackAsTheyWerePut) {
  Open("s", SmallSpec());
  const Prompt prompt(SmallSpec(), 64 * 5 + 17, 1);
  const auto put = client_->Put("s", prompt.Puts()).get();
  ASSERT_THAT(OutcomesOf(put), testing::Each(PageOutcome::kStored)) << put[0].message;
  for (const PutResult& r : put) EXPECT_GT(r.stored_bytes, 0u);
  const PrefixHit hit = client_->Lookup("s", prompt.keys);
  ASSERT_EQ(hit.pages, 6u) << hit.status;
  EXPECT_EQ(hit.tokens, 64u * 5 + 17);
  EXPECT_THAT(hit.tiers, testing::SizeIs(6));
  Fetch fetch(SmallSpec(), prompt.keys);
  ExpectWholeHit(prompt, fetch, client_->Get("s", hit.lease, fetch.gets).get());
  EXPECT_TRUE(client_->Release(hit.lease).ok());
}

TEST_P(ClientConformance, LargePagesTravelInSmallChunksAndWindows) {
  KvSpec spec = SmallSpec();
  spec.layers = 30;
  spec.kv_heads = 3;
  spec.page_tokens = 256;
  Open("s", spec);
  const Prompt prompt(spec, 256 * 3, 2);
  const auto client = Connect({.chunk_bytes = 300'001, .get_window_bytes = 4 << 20});
  ASSERT_THAT(OutcomesOf(client->Put("s", prompt.Puts()).get()),
              testing::Each(PageOutcome::kStored));
  Fetch fetch(spec, prompt.keys);
  ExpectWholeHit(prompt, fetch, client->Get("s", 0, fetch.gets).get());
}

TEST_P(ClientConformance, ContentIsStoredOnceAndNeverReplaced) {
  Open("s", SmallSpec());
  const Prompt prompt(SmallSpec(), 128, 3);
  ASSERT_THAT(OutcomesOf(client_->Put("s", prompt.Puts()).get()),
              testing::Each(PageOutcome::kStored));
  EXPECT_THAT(OutcomesOf(client_->Put("s", prompt.Puts()).get()),
              testing::Each(PageOutcome::kAlreadyThere));
  Prompt other(SmallSpec(), 128, 4);
  other.keys = prompt.keys;
  const auto conflict = client_->Put("s", other.Puts()).get();
  EXPECT_THAT(OutcomesOf(conflict), testing::Each(PageOutcome::kConflict));
  EXPECT_FALSE(conflict[0].message.empty());
  Fetch fetch(SmallSpec(), prompt.keys);
  ExpectWholeHit(prompt, fetch, client_->Get("s", 0, fetch.gets).get());
}

TEST_P(ClientConformance, MissesStandAmongHits) {
  Open("s", SmallSpec());
  const Prompt prompt(SmallSpec(), 64 * 3, 5);
  ASSERT_THAT(OutcomesOf(client_->Put("s", prompt.Puts()).get()),
              testing::Each(PageOutcome::kStored));
  Fetch fetch(SmallSpec(), {prompt.keys[0], "not there", prompt.keys[2], "nor this"});
  EXPECT_THAT(OutcomesOf(client_->Get("s", 0, fetch.gets).get()),
              testing::ElementsAre(PageOutcome::kHit, PageOutcome::kMiss, PageOutcome::kHit,
                                   PageOutcome::kMiss));
  EXPECT_EQ(fetch.buffers[2], prompt.pages[2]);
}

TEST_P(ClientConformance, LookupEndsAtTheFirstHole) {
  Open("s", SmallSpec());
  const Prompt prompt(SmallSpec(), 64 * 4, 6);
  auto puts = prompt.Puts();
  puts.erase(puts.begin() + 2);
  ASSERT_THAT(OutcomesOf(client_->Put("s", puts).get()), testing::Each(PageOutcome::kStored));
  const PrefixHit hit = client_->Lookup("s", prompt.keys);
  EXPECT_EQ(hit.pages, 2u);
  EXPECT_EQ(hit.tokens, 128u);
  EXPECT_EQ(client_->Lookup("s", std::vector<std::string>{"no such key"}).pages, 0u);
}

TEST_P(ClientConformance, UnknownSpaceIsAMissAndARefusal) {
  const Prompt prompt(SmallSpec(), 64, 7);
  const PrefixHit hit = client_->Lookup("nowhere", prompt.keys);
  EXPECT_EQ(hit.pages, 0u);
  EXPECT_TRUE(absl::IsNotFound(hit.status)) << hit.status;
  Fetch fetch(SmallSpec(), prompt.keys);
  EXPECT_THAT(OutcomesOf(client_->Get("nowhere", 0, fetch.gets).get()),
              testing::ElementsAre(PageOutcome::kMiss));
  const auto put = client_->Put("nowhere", prompt.Puts()).get();
  EXPECT_THAT(OutcomesOf(put), testing::ElementsAre(PageOutcome::kRefused));
  EXPECT_THAT(put[0].message, testing::HasSubstr("nowhere"));
}

TEST_P(ClientConformance, APageOfTheWrongSizeIsRefusedAndTheOthersAreStored) {
  Open("s", SmallSpec());
  const Prompt prompt(SmallSpec(), 64 * 3, 8);
  auto puts = prompt.Puts();
  puts[1].raw = puts[1].raw.first(puts[1].raw.size() - 2);
  const auto results = client_->Put("s", puts).get();
  EXPECT_THAT(OutcomesOf(results), testing::ElementsAre(PageOutcome::kStored, PageOutcome::kRefused,
                                                        PageOutcome::kStored));
  EXPECT_FALSE(results[1].message.empty());
}

TEST_P(ClientConformance, APageThatDoesNotFitItsBufferLeavesTheOthersWhole) {
  Open("s", SmallSpec());
  const Prompt prompt(SmallSpec(), 64 * 3, 9);
  ASSERT_THAT(OutcomesOf(client_->Put("s", prompt.Puts()).get()),
              testing::Each(PageOutcome::kStored));
  Fetch fetch(SmallSpec(), prompt.keys);
  fetch.gets[1].out = fetch.gets[1].out.first(1000);
  EXPECT_THAT(
      OutcomesOf(client_->Get("s", 0, fetch.gets).get()),
      testing::ElementsAre(PageOutcome::kHit, PageOutcome::kNotCompatible, PageOutcome::kHit));
  EXPECT_EQ(fetch.buffers[2], prompt.pages[2]);
}

TEST_P(ClientConformance, ARunOfLayersComesAlone) {
  Open("s", SmallSpec());
  const Prompt prompt(SmallSpec(), 64, 10);
  ASSERT_THAT(OutcomesOf(client_->Put("s", prompt.Puts()).get()),
              testing::Each(PageOutcome::kStored));
  const size_t layer = LayerBytes(SmallSpec(), 64);
  std::vector<uint8_t> out(2 * layer);
  const auto results =
      client_
          ->Get("s", 0, {{.key = prompt.keys[0], .out = out, .first_layer = 1, .layer_count = 2}})
          .get();
  ASSERT_EQ(results[0].outcome, PageOutcome::kHit) << results[0].message;
  EXPECT_TRUE(std::equal(out.begin(), out.end(), prompt.pages[0].begin() + layer));
}

TEST_P(ClientConformance, LayersComeInRunsForAllPagesAtOnce) {
  const auto space = client_->OpenSpace({.name = "s", .spec = SmallSpec(), .recipe = "raw"});
  ASSERT_TRUE(space.ok()) << space.status();
  const Prompt prompt(SmallSpec(), 64 * 5 + 17, 15);
  ASSERT_THAT(OutcomesOf(client_->Put("s", prompt.Puts()).get()),
              testing::Each(PageOutcome::kStored));
  for (const uint32_t layers_per_run : {0u, 1u, 3u, 4u, 9u}) {
    SCOPED_TRACE(layers_per_run);
    Fetch fetch(prompt);
    std::vector<uint8_t> nowhere = fetch.buffers[0];
    fetch.gets.push_back({.key = "not there", .out = nowhere});
    const LayerGot got = GetLayers(*client_, *space, fetch.gets, layers_per_run);
    const uint32_t step = std::min(std::max(layers_per_run, 1u), 4u);
    ASSERT_EQ(got.runs.size(), (4 + step - 1) / step);
    for (size_t r = 0; r < got.runs.size(); ++r) {
      const LayerGot::Run& run = got.runs[r];
      ASSERT_EQ(run.layers.first, r * step);
      ASSERT_EQ(run.layers.count, std::min(step, 4 - run.layers.first));
      for (size_t p = 0; p < prompt.pages.size(); ++p) {
        ASSERT_EQ(run.outcomes[p], PageOutcome::kHit);
        const size_t layer = prompt.pages[p].size() / 4;
        EXPECT_TRUE(std::equal(run.bytes[p].begin(), run.bytes[p].end(),
                               prompt.pages[p].begin() + run.layers.first * layer));
      }
      EXPECT_EQ(run.outcomes.back(), PageOutcome::kMiss);
    }
    ASSERT_EQ(got.results.size(), prompt.pages.size() + 1);
    EXPECT_EQ(got.results.back().outcome, PageOutcome::kMiss);
    ExpectWholeHit(prompt, fetch, {got.results.begin(), got.results.end() - 1});
  }
}

TEST_P(ClientConformance, LayersArePutAsTheyAreFilled) {
  const auto space = client_->OpenSpace({.name = "s", .spec = SmallSpec(), .recipe = "raw"});
  ASSERT_TRUE(space.ok()) << space.status();
  const Prompt prompt(SmallSpec(), 64 * 11 + 17, 16);
  for (const PageOutcome wanted : {PageOutcome::kStored, PageOutcome::kAlreadyThere}) {
    Filling filling(prompt);
    const auto put = client_->PutLayers(*space, filling.puts, filling.Done());
    for (uint32_t layers = 1; layers <= 4; ++layers) filling.Fill(*put, layers);
    const auto results = filling.results.get_future().get();
    EXPECT_THAT(OutcomesOf(results), testing::Each(wanted)) << results[0].message;
  }
  Fetch fetch(prompt);
  ExpectWholeHit(prompt, fetch, client_->Get("s", 0, fetch.gets).get());
}

TEST_P(ClientConformance, APutThatIsGivenUpStoresNothing) {
  const auto space = client_->OpenSpace({.name = "s", .spec = SmallSpec(), .recipe = "raw"});
  ASSERT_TRUE(space.ok()) << space.status();
  const Prompt prompt(SmallSpec(), 64 * 11, 17);
  for (const uint32_t layers : {0, 1, 3}) {
    Filling filling(prompt);
    auto put = client_->PutLayers(*space, filling.puts, filling.Done());
    if (layers > 0) filling.Fill(*put, layers);
    put.reset();
    EXPECT_THAT(OutcomesOf(filling.results.get_future().get()),
                testing::Each(PageOutcome::kRefused));
  }
  EXPECT_EQ(client_->Lookup("s", prompt.keys).pages, 0u);
}

TEST_P(ClientConformance, AnUnfinishedPutEndsWithItsClient) {
  const auto space = client_->OpenSpace({.name = "s", .spec = SmallSpec(), .recipe = "raw"});
  ASSERT_TRUE(space.ok()) << space.status();
  const Prompt prompt(SmallSpec(), 64 * 11, 18);
  Filling filling(prompt);
  const auto put = client_->PutLayers(*space, filling.puts, filling.Done());
  filling.Fill(*put, 2);
  client_.reset();
  EXPECT_THAT(OutcomesOf(filling.results.get_future().get()),
              testing::Each(PageOutcome::kUnavailable));
  put->Filled(4);  // to nobody
}

TEST_P(ClientConformance, PagesArePinnedAndDeleted) {
  Open("s", SmallSpec());
  const Prompt prompt(SmallSpec(), 128, 11);
  ASSERT_THAT(OutcomesOf(client_->Put("s", prompt.Puts()).get()),
              testing::Each(PageOutcome::kStored));
  const std::vector<std::string> keys = {prompt.keys[0], "not there"};
  const auto pinned = client_->Pin("s", keys, true);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_THAT(*pinned, testing::ElementsAre(PageOutcome::kHit, PageOutcome::kMiss));
  EXPECT_TRUE(client_->Pin("s", keys, false).ok());
  const auto deleted = client_->Delete("s", keys);
  ASSERT_TRUE(deleted.ok()) << deleted.status();
  EXPECT_THAT(*deleted, testing::ElementsAre(PageOutcome::kHit, PageOutcome::kMiss));
  EXPECT_EQ(client_->Lookup("s", prompt.keys).pages, 0u);
}

TEST_P(ClientConformance, NothingAskedIsNothingAnswered) {
  EXPECT_TRUE(client_->Put("s", {}).get().empty());
  EXPECT_TRUE(client_->Get("s", 0, {}).get().empty());
}

TEST_P(ClientConformance, EightClientsWithOnePromptStoreItOnce) {
  KvSpec spec = SmallSpec();
  spec.page_tokens = 256;
  Open("s", spec);
  const Prompt prompt(spec, 2048, 12);
  std::atomic<int> stored = 0, there = 0, other = 0;
  std::vector<std::thread> workers;
  for (int w = 0; w < 8; ++w) {
    workers.emplace_back([&] {
      const auto client = Connect();
      for (const PutResult& r : client->Put("s", prompt.Puts()).get()) {
        ++(r.outcome == PageOutcome::kStored         ? stored
           : r.outcome == PageOutcome::kAlreadyThere ? there
                                                     : other);
      }
    });
  }
  for (std::thread& w : workers) w.join();
  EXPECT_EQ(stored, 8);
  EXPECT_EQ(there, 7 * 8);
  EXPECT_EQ(other, 0);
}

TEST_P(ClientConformance, ManyBatchesOfOneClientRunAtOnce) {
  Open("s", SmallSpec());
  std::vector<Prompt> prompts;
  for (int i = 0; i < 16; ++i) prompts.emplace_back(SmallSpec(), 64 * 4, 100 + i);
  std::vector<std::future<std::vector<PutResult>>> puts;
  for (const Prompt& p : prompts) puts.push_back(client_->Put("s", p.Puts()));
  for (auto& p : puts) EXPECT_THAT(OutcomesOf(p.get()), testing::Each(PageOutcome::kStored));
  std::vector<Fetch> fetches;
  for (const Prompt& p : prompts) fetches.emplace_back(SmallSpec(), p.keys);
  std::vector<std::future<std::vector<GetResult>>> gets;
  for (Fetch& f : fetches) gets.push_back(client_->Get("s", 0, f.gets));
  for (size_t i = 0; i < gets.size(); ++i) ExpectWholeHit(prompts[i], fetches[i], gets[i].get());
}

TEST_P(ClientConformance, TheDestructorEndsWhatRunsAndEveryCallbackRunsOnce) {
  Open("s", SmallSpec());
  const Prompt prompt(SmallSpec(), 64 * 8, 13);
  std::atomic<int> callbacks = 0;
  Fetch fetch(SmallSpec(), prompt.keys);
  for (int i = 0; i < 20; ++i) {
    client_->PutAsync("s", prompt.Puts(), [&](std::vector<PutResult> r) {
      EXPECT_EQ(r.size(), 8u);
      ++callbacks;
    });
  }
  client_->GetAsync("s", 0, fetch.gets, [&](std::vector<GetResult>) { ++callbacks; });
  client_.reset();
  EXPECT_EQ(callbacks, 21);
}

TEST_P(ClientConformance, AKilledServerIsAMissAndARestartedOneIsFoundAgain) {
  Open("s", SmallSpec());
  const Prompt prompt(SmallSpec(), 64 * 32, 14);
  const auto client = Connect({.timeout = std::chrono::milliseconds(8000), .attempts = 3});
  auto running = client->Put("s", prompt.Puts());
  server_->Kill();
  // Whatever was acknowledged before is fine; nothing hangs, and the rest says why.
  for (const PutResult& r : running.get()) {
    EXPECT_THAT(r.outcome, testing::AnyOf(PageOutcome::kStored, PageOutcome::kUnavailable));
  }
  const PrefixHit none = client->Lookup("s", prompt.keys);
  EXPECT_EQ(none.pages, 0u);
  EXPECT_TRUE(absl::IsUnavailable(none.status)) << none.status;
  EXPECT_THAT(none.status.message(), testing::HasSubstr("is kvstowd running?"));
  Fetch lost(SmallSpec(), prompt.keys);
  EXPECT_THAT(OutcomesOf(client->Get("s", 0, lost.gets).get()),
              testing::Each(PageOutcome::kUnavailable));

  server_->Start();
  Open("s", SmallSpec());
  EXPECT_THAT(OutcomesOf(client_->Put("s", prompt.Puts()).get()),
              testing::Each(testing::AnyOf(PageOutcome::kStored, PageOutcome::kAlreadyThere)));
  Fetch fetch(SmallSpec(), prompt.keys);
  ExpectWholeHit(prompt, fetch, client_->Get("s", 0, fetch.gets).get());
}

}  // namespace kvstow

#endif  // KVSTOW_TESTS_CONFORMANCE_CLIENT_CONFORMANCE_H_
