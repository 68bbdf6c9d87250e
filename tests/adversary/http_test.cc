// Peers of the HTTP port can neither make it keep memory nor keep probes from it.
#include "service/ops/http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "tests/adversary/health_probe.h"
#include "tests/adversary/tcp_peer.h"
#include "tests/service/server_fixture.h"

namespace kvstow::testing {
namespace {

using ::testing::StartsWith;

class HttpPortTest : public ::testing::Test {
 protected:
  HttpPortTest() {
    auto server =
        HttpServer::Start({.host = "127.0.0.1"}, {.metrics =
                                                      [this] {
                                                        ++waiting_;
                                                        go_on_.wait();
                                                        return std::string("m 1\n");
                                                      },
                                                  .ready = [] { return true; },
                                                  .status = [] { return std::string("<p>"); },
                                                  .parts = [] { return std::string("<p>"); }});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  ~HttpPortTest() override {
    GoOn();
    server_.reset();
  }
  // Metrics wait for this.
  void GoOn() {
    if (!std::exchange(gone_on_, true)) gate_.set_value();
  }
  TcpPeer Peer() const { return TcpPeer(PortOf(server_->address())); }
  void ExpectHealthy() const {
    int status = 0;
    EXPECT_EQ(HttpGet(server_->address(), "/healthz", &status), "ok\n");
    EXPECT_EQ(status, 200);
  }

  std::atomic<int> waiting_ = 0;
  std::promise<void> gate_;
  std::shared_future<void> go_on_ = gate_.get_future().share();
  bool gone_on_ = false;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpPortTest, ABodyOfAnyKindIsRefusedBeforeItComes) {
  for (const char* announced : {"Transfer-Encoding: chunked", "transfer-encoding : gzip,chunked",
                                "Content-Length: 1", "Content-Length: 400000000000",
                                "Content-Length: 0\r\nContent-Length: 7", "content-length:\t-1"}) {
    for (const char* method : {"GET", "POST", "PUT"}) {
      const TcpPeer peer = Peer();
      ASSERT_TRUE(
          peer.Send(std::string(method) + " / HTTP/1.1\r\nHost: x\r\n" + announced + "\r\n\r\n"));
      EXPECT_THAT(peer.ReceiveAll(), StartsWith("HTTP/1.1 413 ")) << method << " " << announced;
    }
  }
  ExpectHealthy();
}

TEST_F(HttpPortTest, AHeadThatDoesNotEndIsHungUpOn) {
  const TcpPeer lines = Peer(), line = Peer();
  ASSERT_TRUE(lines.Send("GET /healthz HTTP/1.1\r\n"));
  const std::string header = "A: " + std::string(1021, 'x') + "\r\n";
  size_t sent = 0;
  while (sent < (size_t{64} << 20) && lines.Send(header)) sent += header.size();
  EXPECT_LT(sent, size_t{64} << 20);
  sent = 0;
  while (sent < (size_t{64} << 20) && line.Send(std::string(1024, 'G'))) sent += 1024;
  EXPECT_LT(sent, size_t{64} << 20);
  ExpectHealthy();
}

TEST_F(HttpPortTest, OnlyPlainGetsAreAnswered) {
  const auto answer = [&](const std::string& request) {
    const TcpPeer peer = Peer();
    EXPECT_TRUE(peer.Send(request));
    return peer.ReceiveAll();
  };
  EXPECT_THAT(answer("GET /healthz HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(answer("GET /healthz?a=b HTTP/1.1\r\n\r\n"), ::testing::EndsWith("\r\n\r\nok\n"));
  EXPECT_THAT(answer("HEAD /healthz HTTP/1.1\r\n\r\n"), ::testing::EndsWith("\r\n\r\n"));
  EXPECT_THAT(answer("GET /nothing HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(answer("DELETE / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(answer("GET http://elsewhere/ HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(answer("GET / HTTP/2.0\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(answer("\x16\x03\x01\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
}

TEST_F(HttpPortTest, SocketsThatSayNothingKeepNoProbeWaiting) {
  const HealthProbe health(server_->address());
  std::vector<TcpPeer> slow;
  for (int i = 0; i < 300; ++i) {
    slow.push_back(Peer());
    // The later ones push out the earlier.
    if (i % 2 == 0) {
      ASSERT_TRUE(slow.back().Send("GET /healthz HTTP/1.1\r\nHost:"));
    }
  }
  for (int i = 0; i < 20; ++i) ExpectHealthy();
}

TEST_F(HttpPortTest, APageThatTakesItsTimeKeepsNoProbeWaiting) {
  const HealthProbe health(server_->address());
  std::vector<TcpPeer> readers;
  for (int i = 0; i < 10; ++i) {
    readers.push_back(Peer());
    ASSERT_TRUE(readers.back().Send("GET /metrics HTTP/1.1\r\n\r\n"));
  }
  ASSERT_TRUE(Eventually([&] { return waiting_ > 0; }));
  ExpectHealthy();
  int status = 0;
  EXPECT_EQ(HttpGet(server_->address(), "/readyz", &status), "ready\n");
  GoOn();
  for (const TcpPeer& reader : readers) {
    EXPECT_THAT(reader.ReceiveAll(), ::testing::EndsWith("\r\n\r\nm 1\n"));
  }
}

TEST_F(HttpPortTest, ItStopsWhilePeersAreConnected) {
  const TcpPeer silent = Peer(), waiting = Peer();
  ASSERT_TRUE(waiting.Send("GET /metrics HTTP/1.1\r\n\r\n"));
  ASSERT_TRUE(Eventually([&] { return waiting_ > 0; }));
  GoOn();
  server_.reset();
  EXPECT_EQ(silent.ReceiveAll(), "");
}

}  // namespace
}  // namespace kvstow::testing
