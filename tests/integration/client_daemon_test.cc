// The client against kvstowd itself: over TCP with a disk, over a Unix socket in memory alone.
#include <csignal>

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

}  // namespace
}  // namespace kvstow
