// kvstowd as users run it: started with the configuration of deploy/, ended by signals, started
// again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <thread>

#include "tests/integration/server_process.h"
#include "tests/paths.h"
#include "tests/service/wire_client.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

const std::string kExampleConfig = TestsPath("../deploy/kvstowd.conf");

class KvstowdTest : public ::testing::Test {
 protected:
  // The example configuration on free ports, with the test's own folder.
  std::unique_ptr<ServerProcess> Start(std::vector<std::string> args = {}) {
    args.insert(args.begin(), {"--config", kExampleConfig, "--listen", "127.0.0.1:0"});
    return std::make_unique<ServerProcess>(
        args, Environment{{"KVSTOW_HTTP_LISTEN", "127.0.0.1:0"},
                          {"KVSTOW_DISK_PATH", folder_.path() + "/disk"},
                          {"KVSTOW_DISK_BYTES", "256MiB"},
                          {"KVSTOW_HOST_BYTES", "16MiB"}});
  }
  std::vector<PageIn> Pages(int count, v1::Ack ack) const {
    std::vector<PageIn> pages;
    for (int i = 0; i < count; ++i) {
      pages.push_back({.key = "page" + std::to_string(i),
                       .raw = RandomPage(SmallSpec(), 64, i),
                       .tokens = 64,
                       .ack = ack});
    }
    return pages;
  }
  void ExpectAllThere(const std::string& address, const std::vector<PageIn>& pages) {
    WireClient client(address);
    std::vector<v1::GetPage> ask;
    for (const PageIn& p : pages) ask.push_back(Ask(p.key));
    const auto got = client.Get("s", ask);
    ASSERT_EQ(got.pages.size(), pages.size()) << got.status.error_message();
    for (size_t i = 0; i < pages.size(); ++i) {
      EXPECT_EQ(got.pages[i].reply.status(), v1::HIT) << pages[i].key;
      EXPECT_TRUE(got.pages[i].data == pages[i].raw) << pages[i].key;
    }
  }

  TempFolder folder_;
};

TEST_F(KvstowdTest, ServesWithTheExampleConfigurationAndStopsOnSigterm) {
  const auto server = Start();
  ASSERT_TRUE(server->WaitUntilServing()) << server->log();
  EXPECT_THAT(server->log(), HasSubstr("config host-bytes=16.0 MiB"));
  EXPECT_THAT(server->log(), HasSubstr("config lease-ttl=10s"));
  EXPECT_THAT(server->log(), HasSubstr("RocksDB"));
  EXPECT_TRUE(WireClient(server->address()).OpenSpace("s", "raw").ok());
  server->Signal(SIGTERM);
  EXPECT_EQ(server->Wait(), 0) << server->log();
  EXPECT_THAT(server->log(), HasSubstr("stopped"));
}

TEST_F(KvstowdTest, AnOrderlyStopKeepsEveryPage) {
  const std::vector<PageIn> pages = Pages(50, v1::MEMORY);
  auto server = Start();
  ASSERT_TRUE(server->WaitUntilServing()) << server->log();
  {
    WireClient client(server->address());
    ASSERT_TRUE(client.OpenSpace("s", "raw").ok());
    for (const auto& r : client.Put("s", pages).pages) EXPECT_EQ(r.status(), v1::STORED);
  }
  server->Signal(SIGTERM);
  EXPECT_EQ(server->Wait(), 0) << server->log();
  server = Start();
  ASSERT_TRUE(server->WaitUntilServing()) << server->log();
  EXPECT_THAT(server->log(), HasSubstr("1 spaces, 50 pages came back"));
  ExpectAllThere(server->address(), pages);
}

TEST_F(KvstowdTest, WhatWasAcknowledgedSurvivesSigkill) {
  const std::vector<PageIn> pages = Pages(200, v1::PROCESS);  // more than the host tier holds
  auto server = Start();
  ASSERT_TRUE(server->WaitUntilServing()) << server->log();
  {
    WireClient client(server->address());
    ASSERT_TRUE(client.OpenSpace("s", "raw").ok());
    for (const auto& r : client.Put("s", pages).pages) {
      EXPECT_EQ(r.status(), v1::STORED) << r.message();
      EXPECT_EQ(r.ack(), v1::PROCESS);
    }
  }
  server->Signal(SIGKILL);
  EXPECT_EQ(server->Wait(), -SIGKILL);
  server = Start();
  ASSERT_TRUE(server->WaitUntilServing()) << server->log();
  ExpectAllThere(server->address(), pages);
}

TEST_F(KvstowdTest, SigkillInTheMiddleOfAPutLeavesOnlyWholePages) {
  auto server = Start();
  ASSERT_TRUE(server->WaitUntilServing()) << server->log();
  const std::vector<PageIn> pages = Pages(400, v1::PROCESS);
  {
    WireClient client(server->address());
    ASSERT_TRUE(client.OpenSpace("s", "raw").ok());
    std::thread putting([&] { client.Put("s", pages); });
    while (client.Usage().pages() < 20) std::this_thread::yield();
    server->Signal(SIGKILL);
    putting.join();
  }
  server->Wait();
  server = Start();
  ASSERT_TRUE(server->WaitUntilServing()) << server->log();
  WireClient client(server->address());
  std::vector<v1::GetPage> ask;
  for (const PageIn& p : pages) ask.push_back(Ask(p.key));
  const auto got = client.Get("s", ask);
  ASSERT_EQ(got.pages.size(), pages.size()) << got.status.error_message();
  int hits = 0;
  for (size_t i = 0; i < pages.size(); ++i) {
    if (got.pages[i].reply.status() == v1::MISS) continue;
    ASSERT_EQ(got.pages[i].reply.status(), v1::HIT) << got.pages[i].reply.message();
    EXPECT_TRUE(got.pages[i].data == pages[i].raw) << pages[i].key;
    ++hits;
  }
  EXPECT_GE(hits, 20);
}

TEST_F(KvstowdTest, AFolderThatAnotherServerHoldsIsNamed) {
  const auto first = Start();
  ASSERT_TRUE(first->WaitUntilServing()) << first->log();
  const auto second = Start();
  EXPECT_FALSE(second->WaitUntilServing());
  EXPECT_EQ(second->Wait(), 1);
  EXPECT_THAT(second->log(), HasSubstr("disk-path: "));
  EXPECT_THAT(second->log(), HasSubstr(folder_.path() + "/disk"));
}

TEST_F(KvstowdTest, AFolderThatIsAFileIsNamed) {
  std::ofstream(folder_.path() + "/disk") << "not a folder";
  const auto server = Start();
  EXPECT_FALSE(server->WaitUntilServing());
  EXPECT_EQ(server->Wait(), 1);
  EXPECT_THAT(server->log(), HasSubstr("disk-path: "));
  EXPECT_THAT(server->log(), HasSubstr(folder_.path() + "/disk"));
}

TEST_F(KvstowdTest, WrongUseExitsWithTwoAndASentence) {
  const std::string file = folder_.path() + "/bad.conf";
  std::ofstream(file) << "host-bites = \"1GiB\"\n";
  const struct {
    std::vector<std::string> args;
    const char* says;
  } kCases[] = {
      {{"--config", "/no/such/kvstowd.conf"}, "/no/such/kvstowd.conf"},
      {{"--config", file}, "host-bites"},
      {{"--config", folder_.path()}, "config: the file cannot be read"},
      {{"--host-bytes", "much"}, "kvstowd: host-bytes: 'much' is not a size"},
      {{"--eviction-policy", "mru"}, "there is no eviction policy 'mru': use one of kvstow, lru"},
      {{"--log-level", "loud"}, "log level 'loud'"},
      {{"--recipe", "int9"}, "recipe: "},
  };
  for (const auto& c : kCases) {
    std::vector<std::string> args = c.args;
    args.insert(args.end(), {"--listen", "127.0.0.1:0", "--http-listen", "off"});
    ServerProcess server(args, {});
    EXPECT_EQ(server.Wait(), 2) << c.says << server.log();
    EXPECT_THAT(server.log(), HasSubstr(c.says));
  }
}

TEST_F(KvstowdTest, HelpAndVersionArePrinted) {
  ServerProcess help({"--help"}, {}), version({"--version"}, {});
  EXPECT_EQ(help.Wait(), 0);
  EXPECT_THAT(help.log(), HasSubstr("Examples:"));
  EXPECT_EQ(version.Wait(), 0);
  EXPECT_THAT(version.log(), ::testing::StartsWith("kvstowd 0."));
}

TEST_F(KvstowdTest, WithoutTlsAnOpenAddressIsRefused) {
  ServerProcess server({"--listen", "0.0.0.0:0", "--http-listen", "off"}, {});
  EXPECT_EQ(server.Wait(), 2);
  EXPECT_THAT(server.log(), HasSubstr("listen: 0.0.0.0:0; direct-listen: auto, a port on the host "
                                      "of 0.0.0.0:0: others can reach this and it has no TLS"));
}

TEST_F(KvstowdTest, AnOpenAddressThatIsWantedIsWarnedAbout) {
  ServerProcess server({"--listen", "0.0.0.0:0", "--http-listen", "off", "--insecure"}, {});
  ASSERT_TRUE(server.WaitUntilServing()) << server.log();
  EXPECT_THAT(server.log(), HasSubstr("listen: 0.0.0.0:0 has no TLS"));
  EXPECT_THAT(server.log(), HasSubstr("direct-listen: auto, a port on the host of 0.0.0.0:0"));
}

TEST_F(KvstowdTest, TellsSystemdWhenItServesAndWhenItStops) {
  const std::string path = folder_.path() + "/notify";
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ASSERT_GE(fd, 0);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const auto message = [&] {
    char text[64] = {};
    return recv(fd, text, sizeof(text) - 1, 0) > 0 ? std::string(text) : "";
  };
  ServerProcess server({"--listen", "127.0.0.1:0", "--http-listen", "off"},
                       {{"NOTIFY_SOCKET", path}});
  ASSERT_TRUE(server.WaitUntilServing()) << server.log();
  EXPECT_EQ(message(), "READY=1");
  server.Signal(SIGTERM);
  EXPECT_EQ(message(), "STOPPING=1");
  EXPECT_EQ(server.Wait(), 0);
  close(fd);
}

}  // namespace
}  // namespace kvstow::testing
