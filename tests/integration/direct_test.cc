// Pages over direct connections to kvstowd: what a caller sees is what streams give.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "tests/client/prompt.h"
#include "tests/integration/process.h"

namespace kvstow {
namespace {

using testing::Each;

constexpr char kGets[] = "kvstow_direct_pages_total{method=\"get\"}";
constexpr char kPuts[] = "kvstow_direct_pages_total{method=\"put\"}";

class DirectTest : public testing::Test {
 protected:
  std::unique_ptr<Client> Connect(ClientOptions options = {}) {
    options.address = daemon_.address();
    return Client::Connect(options);
  }
  static SpaceInfo Open(Client& client, const std::string& name, const std::string& recipe) {
    const auto space = client.OpenSpace({.name = name, .spec = SmallSpec(), .recipe = recipe});
    EXPECT_TRUE(space.ok()) << space.status();
    return *space;
  }
  double Metric(const std::string& name) const {
    const auto answer = httplib::Client("http://" + daemon_.http_address()).Get("/metrics");
    EXPECT_TRUE(answer) << "no metrics";
    const std::string text = answer ? answer->body : "";
    const size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
  }
  // Fetches until pages come over a direct connection: the first calls may find none.
  void GetUntilDirect(Client& client, const std::string& space, Fetch& fetch) {
    const double before = Metric(kGets);
    while (Metric(kGets) <= before) {
      ASSERT_THAT(OutcomesOf(client.Get(space, 0, fetch.gets).get()), Each(PageOutcome::kHit));
    }
  }

  Daemon daemon_{"127.0.0.1:0", {"--host-bytes", "256MiB"}};
};

TEST_F(DirectTest, PagesAreWhatStreamsGive) {
  const KvSpec spec = SmallSpec();
  const Prompt prompt(spec, 130 * 64 + 32, 1);  // more pages than a message takes
  const auto direct = Connect(), encoded = Connect({.payload = Payload::kEncoded});
  const auto streams = Connect({.direct_connections = 0});
  for (const char* recipe : {"raw", "int8", "kvstow"}) {
    SCOPED_TRACE(recipe);
    for (Client* client : {direct.get(), encoded.get(), streams.get()})
      Open(*client, recipe, recipe);
    const double before = Metric(kPuts);
    while (Metric(kPuts) <= before) {
      ASSERT_TRUE(direct->Delete(recipe, prompt.keys, true).ok());
      ASSERT_THAT(OutcomesOf(direct->Put(recipe, prompt.Puts()).get()), Each(PageOutcome::kStored));
    }
    EXPECT_THAT(OutcomesOf(streams->Put(recipe, prompt.Puts()).get()),
                Each(PageOutcome::kAlreadyThere));
    Fetch streamed(spec, prompt.keys), raw(spec, prompt.keys), coded(spec, prompt.keys);
    for (Fetch* fetch : {&streamed, &raw, &coded}) {
      fetch->gets[1].first_layer = 2;
      fetch->gets[2].layer_count = 1;
      fetch->gets[3].first_token = 16;
      fetch->gets[3].token_count = 8;
    }
    ASSERT_THAT(OutcomesOf(streams->Get(recipe, 0, streamed.gets).get()), Each(PageOutcome::kHit));
    GetUntilDirect(*direct, recipe, raw);
    GetUntilDirect(*encoded, recipe, coded);
    EXPECT_EQ(raw.buffers, streamed.buffers);
    EXPECT_EQ(coded.buffers, streamed.buffers);
  }
}

TEST_F(DirectTest, ManyCallsAtOnce) {
  const KvSpec spec = SmallSpec();
  const auto client = Connect({.direct_connections = 3});
  Open(*client, "s", "raw");
  std::vector<std::thread> workers;
  for (int32_t w = 0; w < 8; ++w) {
    workers.emplace_back([&, w] {
      const Prompt prompt(spec, 8 * 64, 100 + w);
      EXPECT_THAT(OutcomesOf(client->Put("s", prompt.Puts()).get()), Each(PageOutcome::kStored));
      for (int round = 0; round < 20; ++round) {
        Fetch fetch(spec, prompt.keys);
        EXPECT_THAT(OutcomesOf(client->Get("s", 0, fetch.gets).get()), Each(PageOutcome::kHit));
        EXPECT_EQ(fetch.buffers, prompt.pages);
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_LE(Metric("kvstow_direct_connections"), 3);
}

TEST_F(DirectTest, AServerThatCameBackServesAtOnce) {
  const KvSpec spec = SmallSpec();
  const Prompt prompt(spec, 4 * 64, 1);
  const auto client = Connect();
  Open(*client, "s", "raw");
  ASSERT_THAT(OutcomesOf(client->Put("s", prompt.Puts()).get()), Each(PageOutcome::kStored));
  Fetch fetch(spec, prompt.keys);
  GetUntilDirect(*client, "s", fetch);
  daemon_.Kill();
  daemon_.Start();
  // The connection is gone, and nothing of it is seen: without a disk the space is, too.
  Open(*client, "s", "raw");
  EXPECT_THAT(OutcomesOf(client->Get("s", 0, fetch.gets).get()), Each(PageOutcome::kMiss));
  EXPECT_THAT(OutcomesOf(client->Put("s", prompt.Puts()).get()), Each(PageOutcome::kStored));
}

TEST_F(DirectTest, AClientThatGoesEndsItsCalls) {
  const KvSpec spec = SmallSpec();
  const Prompt prompt(spec, 16 * 64, 1);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> ended = 0;
    {
      const auto client = Connect();
      Open(*client, "s", "raw");
      (void)client->Put("s", prompt.Puts()).get();
      for (int call = 0; call < 4; ++call) {
        client->PutAsync("s", prompt.Puts(), [&](const std::vector<PutResult>&) { ++ended; });
      }
    }
    EXPECT_EQ(ended, 4);
  }
}

}  // namespace
}  // namespace kvstow
