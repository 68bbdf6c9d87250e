// The client against kvstowd itself: over TCP with a disk, over a Unix socket in memory alone.
#include <csignal>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "tests/conformance/client_conformance.h"
#include "tests/integration/process.h"

namespace kvstow {
namespace {

// A daemon with its folder.
class DaemonInDir final : public ServerUnderTest {
 public:
  DaemonInDir(bool unix_socket, bool disk)
      : daemon_(unix_socket ? "unix:" + dir_.path("socket") : "127.0.0.1:0",
                disk ? std::vector<std::string>{"--disk-path", dir_.path("disk")}
                     : std::vector<std::string>{"--host-bytes", "256MiB"}) {}
  std::string address() const override { return daemon_.address(); }
  void Kill() override { daemon_.Kill(); }
  void Start() override { daemon_.Start(); }
  Daemon& daemon() { return daemon_; }

 private:
  TempDir dir_;
  Daemon daemon_;
};

std::unique_ptr<ServerUnderTest> OverTcp() { return std::make_unique<DaemonInDir>(false, true); }
std::unique_ptr<ServerUnderTest> OverUnixSocket() {
  return std::make_unique<DaemonInDir>(true, false);
}

INSTANTIATE_TEST_SUITE_P(Tcp, ClientConformance, testing::Values(ServerCase{"kvstowd", OverTcp}));
INSTANTIATE_TEST_SUITE_P(Unix, ClientConformance,
                         testing::Values(ServerCase{"kvstowd", OverUnixSocket}));

// Whole pages, layers and tokens, decoded there or here, more of them than the window takes.
TEST(EncodedPages, DecodeHereToWhatTheServerDecodes) {
  DaemonInDir server(/*unix_socket=*/false, /*disk=*/false);
  const KvSpec spec = SmallSpec();
  const Prompt prompt(spec, 19 * 64 + 17, 1);
  const auto raw = Client::Connect({.address = server.address()});
  const auto encoded = Client::Connect(
      {.address = server.address(), .get_window_bytes = 4 << 20, .payload = Payload::kEncoded});
  for (const char* recipe : {"raw", "int8", "kvstow", "rotated8", "knorm(keep=0.6)|int8"}) {
    SCOPED_TRACE(recipe);
    const std::string space = absl::StrCat("s", absl::string_view(recipe).substr(0, 4));
    const bool sparse = absl::StartsWith(recipe, "knorm");
    ASSERT_TRUE(raw->OpenSpace({.name = space,
                                .spec = spec,
                                .recipe = recipe,
                                .fidelity = sparse ? Fidelity::kSparse : Fidelity::kUnspecified})
                    .ok());
    ASSERT_THAT(OutcomesOf(raw->Put(space, prompt.Puts()).get()),
                testing::Each(PageOutcome::kStored));
    // The client encodes as the server does: to the server, the same pages are there already.
    const auto opened = encoded->FindSpace(space);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_TRUE(opened->put_encoded.ok()) << opened->put_encoded;
    ASSERT_THAT(OutcomesOf(encoded->Put(space, prompt.Puts()).get()),
                testing::Each(PageOutcome::kAlreadyThere));
    ASSERT_TRUE(raw->Delete(space, prompt.keys).ok());
    ASSERT_THAT(OutcomesOf(encoded->Put(space, prompt.Puts()).get()),
                testing::Each(PageOutcome::kStored));
    Fetch there(spec, prompt.keys), here(spec, prompt.keys);
    for (Fetch* fetch : {&there, &here}) {
      fetch->gets[1].first_layer = 2;
      fetch->gets[2].layer_count = 1;
      fetch->gets[3].first_token = 30;
      fetch->gets[4].token_count = 7;
      fetch->gets[19].first_token = 18;  // of 17
      fetch->gets.push_back({.key = "none", .out = fetch->buffers[0]});
    }
    const auto a = raw->Get(space, 0, there.gets).get();
    const auto b = encoded->Get(space, 0, here.gets).get();
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_EQ(a[i].outcome, i < 19    ? PageOutcome::kHit
                              : i == 19 ? PageOutcome::kNotCompatible
                                        : PageOutcome::kMiss);
      EXPECT_EQ(b[i].outcome, a[i].outcome) << b[i].message;
      if (a[i].outcome != PageOutcome::kHit) continue;
      EXPECT_EQ(b[i].bytes, a[i].bytes);
      EXPECT_EQ(b[i].tokens, a[i].tokens);
      EXPECT_EQ(b[i].first_position, a[i].first_position);
      EXPECT_EQ(here.buffers[i], there.buffers[i]);
      EXPECT_EQ(a[i].keep.size(), sparse ? a[i].bytes / 256 : 0) << "128 values of F16 a token";
      EXPECT_EQ(b[i].keep, a[i].keep);
      const auto kept = std::count(a[i].keep.begin(), a[i].keep.end(), 1);
      EXPECT_DOUBLE_EQ(a[i].kept_share,
                       sparse ? kept / static_cast<double>(a[i].keep.size()) : 1.0);
      EXPECT_DOUBLE_EQ(b[i].kept_share, a[i].kept_share);
    }
  }
}

// By runs of layers, raw and encoded, a page is what it is as a whole, and so is what is said of
// it.
TEST(LayerGets, AreWhatWholeGetsAre) {
  DaemonInDir server(/*unix_socket=*/false, /*disk=*/false);
  KvSpec spec = SmallSpec();
  spec.layers = 20;
  spec.page_tokens = 256;  // runs of 8 layers
  const Prompt prompt(spec, 2 * 256 + 17, 1);
  const auto raw = Client::Connect({.address = server.address()});
  const auto encoded = Client::Connect({.address = server.address(), .payload = Payload::kEncoded});
  for (const char* recipe :
       {"raw", "lossless", "int8", "kvstow", "rotated8", "knorm(keep=0.6)|int8"}) {
    SCOPED_TRACE(recipe);
    const std::string name = absl::StrCat("s", absl::string_view(recipe).substr(0, 4));
    const bool sparse = absl::StartsWith(recipe, "knorm");
    const auto space =
        raw->OpenSpace({.name = name,
                        .spec = spec,
                        .recipe = recipe,
                        .fidelity = sparse ? Fidelity::kSparse : Fidelity::kUnspecified});
    ASSERT_TRUE(space.ok()) << space.status();
    EXPECT_EQ(space->layers_per_run, name == "sloss" || name == "skvst" ? 8u : 3u);
    const auto to_encode = encoded->FindSpace(name);
    ASSERT_TRUE(to_encode.ok()) << to_encode.status();
    EXPECT_EQ(to_encode->layers_per_run, 8u);
    ASSERT_THAT(OutcomesOf(raw->Put(name, prompt.Puts()).get()),
                testing::Each(PageOutcome::kStored));
    Fetch whole(prompt);
    const auto a = raw->Get(name, 0, whole.gets).get();
    for (Client* client : {raw.get(), encoded.get()}) {
      for (const uint32_t layers_per_run : {0u, 1u, 7u}) {
        SCOPED_TRACE(layers_per_run);
        Fetch fetch(prompt);
        const LayerGot got = GetLayers(*client, *space, fetch.gets, layers_per_run);
        EXPECT_EQ(fetch.buffers, whole.buffers);
        for (size_t p = 0; p < a.size(); ++p) {
          const GetResult& b = got.results[p];
          ASSERT_EQ(b.outcome, PageOutcome::kHit) << b.message;
          EXPECT_EQ(b.bytes, a[p].bytes);
          EXPECT_EQ(b.tokens, a[p].tokens);
          EXPECT_EQ(b.exact, a[p].exact);
          EXPECT_EQ(b.levels, a[p].levels);
          EXPECT_EQ(b.recipe, a[p].recipe);
          EXPECT_EQ(b.raw_digest, a[p].raw_digest);
          EXPECT_GE(b.estimated_error, a[p].estimated_error * 0.999) << "that of the worst run";
          EXPECT_EQ(b.keep, a[p].keep);
        }
      }
    }
  }
}

// A server takes 65,536 requests that it has not answered; of pages by layers there are soon more.
TEST(LayerGets, AskForNoMoreThanServersTakeAtOnce) {
  DaemonInDir server(/*unix_socket=*/false, /*disk=*/false);
  const Prompt prompt(SmallSpec(), 2 * 64, 1);
  // So many requests may take more than a call's usual ten seconds where sanitizers run.
  const auto client =
      Client::Connect({.address = server.address(), .timeout = std::chrono::minutes(2)});
  const auto space = client->OpenSpace({.name = "s", .spec = SmallSpec(), .recipe = "raw"});
  ASSERT_TRUE(space.ok()) << space.status();
  ASSERT_THAT(OutcomesOf(client->Put("s", prompt.Puts()).get()),
              testing::Each(PageOutcome::kStored));
  Fetch fetch(prompt);
  std::vector<PageGet> gets(20'000, {.key = "not there", .out = fetch.buffers[0]});
  gets.front() = fetch.gets[0];
  gets.back() = fetch.gets[1];
  std::promise<std::vector<GetResult>> done;
  client->GetLayersAsync(
      *space, 0, std::move(gets), 1, nullptr,
      [&](std::vector<GetResult> results) { done.set_value(std::move(results)); });
  const std::vector<GetResult> results = done.get_future().get();
  EXPECT_EQ(results.front().outcome, PageOutcome::kHit) << results.front().message;
  EXPECT_EQ(results.back().outcome, PageOutcome::kHit);
  EXPECT_EQ(results[1].outcome, PageOutcome::kMiss) << results[1].message;
  EXPECT_EQ(fetch.buffers, prompt.pages);
}

// The base level of a page and then the page, each as a Get of its own brings it.
TEST(ProgressiveGets, AreABaseLevelAndThenAllOfThem) {
  DaemonInDir server(/*unix_socket=*/false, /*disk=*/false);
  const KvSpec spec = SmallSpec();
  const Prompt prompt(spec, 3 * 64 + 17, 1);
  const auto raw = Client::Connect({.address = server.address()});
  const auto encoded = Client::Connect({.address = server.address(), .payload = Payload::kEncoded});
  for (const char* recipe : {"raw", "int8", "kvstow"}) {
    SCOPED_TRACE(recipe);
    const auto space = raw->OpenSpace({.name = recipe, .spec = spec, .recipe = recipe});
    ASSERT_TRUE(space.ok()) << space.status();
    EXPECT_EQ(space->levels > 1, absl::string_view(recipe) == "kvstow");
    ASSERT_TRUE(encoded->FindSpace(recipe).ok());
    ASSERT_THAT(OutcomesOf(raw->Put(recipe, prompt.Puts()).get()),
                testing::Each(PageOutcome::kStored));
    Fetch base(prompt), whole(prompt);
    for (PageGet& get : base.gets) get.max_levels = 1;
    const auto wanted_base = raw->Get(recipe, 0, base.gets).get();
    const auto wanted = raw->Get(recipe, 0, whole.gets).get();
    for (Client* client : {raw.get(), encoded.get()}) {
      Fetch fetch(prompt);
      for (PageGet& get : fetch.gets) get.min_levels = space->levels;
      const ProgressiveGot got = GetProgressive(*client, recipe, fetch.gets);
      EXPECT_EQ(got.base_bytes, base.buffers);
      EXPECT_EQ(fetch.buffers, whole.buffers);
      for (size_t p = 0; p < wanted.size(); ++p) {
        ASSERT_EQ(got.base[p].outcome, PageOutcome::kHit) << got.base[p].message;
        ASSERT_EQ(got.results[p].outcome, PageOutcome::kHit) << got.results[p].message;
        EXPECT_EQ(got.base[p].levels, 1u);
        EXPECT_EQ(got.base[p].estimated_error, wanted_base[p].estimated_error);
        EXPECT_EQ(got.results[p].levels, space->levels);
        EXPECT_EQ(got.results[p].estimated_error, wanted[p].estimated_error);
        EXPECT_EQ(got.results[p].exact, wanted[p].exact);
      }
    }
  }
}

// Results come before their stream has ended, and a client's connection goes with its last stream.
// That was the process's last connection, where clients make no other calls.
TEST(ClientsOfStreamsAlone, GoAsSoonAsTheyHaveTheirResults) {
  DaemonInDir server(/*unix_socket=*/true, /*disk=*/false);
  ASSERT_TRUE(Client::Connect({.address = server.address()})
                  ->OpenSpace({.name = "s", .spec = SmallSpec(), .recipe = "raw"})
                  .ok());
  for (int i = 0; i < 100; ++i) {
    const Prompt prompt(SmallSpec(), 64, i);
    const auto put = Client::Connect({.address = server.address()})->Put("s", prompt.Puts()).get();
    EXPECT_THAT(OutcomesOf(put), testing::Each(PageOutcome::kStored));
    Fetch fetch(SmallSpec(), prompt.keys);
    const auto got = Client::Connect({.address = server.address()})->Get("s", 0, fetch.gets).get();
    EXPECT_THAT(OutcomesOf(got), testing::Each(PageOutcome::kHit));
  }
}

// A server that stopped in the middle keeps its sockets open and their buffers fill: bytes of the
// worker's pages lie in the connection when the deadline passes.
TEST(FrozenServer, IsAMissAtTheDeadlineAndGivesTheBytesBack) {
  DaemonInDir server(/*unix_socket=*/false, /*disk=*/false);
  KvSpec spec = SmallSpec();
  spec.page_tokens = 1024;
  const auto client =
      Client::Connect({.address = server.address(), .timeout = std::chrono::milliseconds(700)});
  ASSERT_TRUE(client->OpenSpace({.name = "s", .spec = spec, .recipe = "raw"}).ok());
  const Prompt prompt(spec, 1024 * 16, 1);
  const Prompt first(spec, 1024, 2);
  ASSERT_THAT(OutcomesOf(client->Put("s", first.Puts()).get()),
              testing::Each(PageOutcome::kStored));

  server.daemon().Signal(SIGSTOP);
  const Time start = Clock::Real().Now();
  EXPECT_THAT(OutcomesOf(client->Put("s", prompt.Puts()).get()),
              testing::Each(PageOutcome::kUnavailable));
  EXPECT_EQ(client->Lookup("s", first.keys).pages, 0u);
  Fetch lost(spec, first.keys);
  EXPECT_THAT(OutcomesOf(client->Get("s", 0, lost.gets).get()),
              testing::Each(PageOutcome::kUnavailable));
  EXPECT_LT(Clock::Real().Now() - start, std::chrono::seconds(5));

  server.daemon().Signal(SIGCONT);
  Fetch fetch(spec, first.keys);
  std::vector<GetResult> results;
  // It may take a moment until it has caught up; each call is a try.
  for (int tries = 0; tries < 10; ++tries) {
    results = client->Get("s", 0, fetch.gets).get();
    if (results[0].outcome == PageOutcome::kHit) break;
  }
  EXPECT_EQ(results[0].outcome, PageOutcome::kHit) << results[0].message;
  EXPECT_EQ(fetch.buffers[0], first.pages[0]);
}

// A host that is gone without a word keeps no connection from looking alive. The client asks a
// server that is late for its health, and goes on at the next one.
TEST(FrozenServer, IsLeftForTheNextOne) {
  DaemonInDir first(/*unix_socket=*/true, /*disk=*/false),
      second(/*unix_socket=*/false, /*disk=*/false);
  const auto client = Client::Connect({.address = second.address() + "," + first.address(),
                                       .timeout = std::chrono::milliseconds(700)});
  ASSERT_TRUE(client->OpenSpace({.name = "s", .spec = SmallSpec(), .recipe = "raw"}).ok());
  ASSERT_EQ(client->serving().address, first.address()) << "a UNIX socket comes first";
  const Prompt prompt(SmallSpec(), 64 * 4, 1);
  first.daemon().Signal(SIGSTOP);
  std::vector<PutResult> results;
  for (int tries = 0; tries < 20; ++tries) {
    results = client->Put("s", prompt.Puts()).get();
    if (results[0].outcome == PageOutcome::kStored) break;
  }
  EXPECT_THAT(OutcomesOf(results), testing::Each(PageOutcome::kStored)) << results[0].message;
  EXPECT_EQ(client->serving().address, second.address());

  first.daemon().Signal(SIGCONT);
  const Time patience = Clock::Real().Now() + std::chrono::seconds(30);
  while (client->serving().address != first.address() && Clock::Real().Now() < patience) {
    EXPECT_EQ(client->Lookup("s", prompt.keys).status, absl::OkStatus());
  }
  EXPECT_EQ(client->serving().address, first.address());
  EXPECT_THAT(OutcomesOf(client->Put("s", prompt.Puts()).get()),
              testing::Each(testing::AnyOf(PageOutcome::kStored, PageOutcome::kAlreadyThere)));
}

}  // namespace
}  // namespace kvstow
