// The system refuses threads: who needs one is turned away, and the server goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "client/client.h"
#include "kvstow/v1/direct.pb.h"
#include "kvstow/v1/local.pb.h"
#include "proto/wire/direct_socket.h"
#include "proto/wire/local_socket.h"
#include "tests/adversary/health_probe.h"
#include "tests/adversary/no_threads.h"
#include "tests/adversary/tcp_peer.h"
#include "tests/service/server_fixture.h"

namespace kvstow::testing {
namespace {

constexpr Duration kLong = std::chrono::seconds(20);

class NoThreadsTest : public ServerTest {
 protected:
  void SetUp() override {
    config_.local_socket = (folder_ / "local").string();
    StartServer();
    ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
    v1::OpenDirectResponse out;
    ASSERT_TRUE(client_->kv().OpenDirect(client_->Context().get(), {}, &out).ok());
    direct_port_ = static_cast<int>(out.port());
    health_.emplace(server_->http_address());
  }
  int direct_port_ = 0;
  std::optional<HealthProbe> health_;
};

TEST_F(NoThreadsTest, DirectConnectionsAreHungUpOnAndTheServerGoesOn) {
  {
    const NoThreads none;
    for (int i = 0; i < 5; ++i) EXPECT_EQ(TcpPeer(direct_port_).ReceiveAll(), "");
  }
  EXPECT_EQ(Metric("kvstow_refused_connections_total{listener=\"direct\"}"), 5);
  const auto socket = DirectSocket::Connect("127.0.0.1", direct_port_, Clock::Real().Now() + kLong);
  ASSERT_TRUE(socket.ok()) << socket.status();
  v1::DirectRequest request;
  NameSpace("s", *request.mutable_get());
  request.mutable_get()->add_pages()->set_key("none");
  const Time soon = Clock::Real().Now() + kLong;
  ASSERT_TRUE(socket->Send(request, {}, 0, soon).ok());
  v1::DirectReply reply;
  uint64_t bytes = 0;
  EXPECT_TRUE(socket->ReceiveFrame(reply, bytes, soon).ok());
}

TEST_F(NoThreadsTest, LocalSessionsAreHungUpOnAndTheServerGoesOn) {
  v1::LocalReply reply;
  {
    const NoThreads none;
    for (int i = 0; i < 5; ++i) {
      const auto socket = LocalSocket::Connect(config_.local_socket);
      ASSERT_TRUE(socket.ok()) << socket.status();
      EXPECT_TRUE(absl::IsUnavailable(socket->Receive(reply, kLong)));
    }
  }
  EXPECT_EQ(Metric("kvstow_refused_connections_total{listener=\"local\"}"), 5);
  v1::OpenLocalResponse out;
  ASSERT_TRUE(client_->kv().OpenLocal(client_->Context().get(), {}, &out).ok());
  const auto socket = LocalSocket::Connect(config_.local_socket);
  v1::LocalRequest hello;
  hello.mutable_hello()->set_token(out.token());
  hello.mutable_hello()->set_bytes(1);
  ASSERT_TRUE(socket->Send(hello).ok());
  EXPECT_TRUE(socket->Receive(reply, kLong).ok());
}

TEST_F(NoThreadsTest, AClientSaysThatItHasNone) {
  std::optional<NoThreads> none(std::in_place);
  const auto client = Client::Connect({.address = server_->address()});
  none.reset();
  EXPECT_TRUE(absl::IsResourceExhausted(client->FindSpace("s").status()));
  std::vector<uint8_t> page(64);
  const auto got = client->Get("s", 0, {{.key = "k", .out = page}}).get();
  EXPECT_THAT(got[0].message, ::testing::HasSubstr("no thread"));
}

}  // namespace
}  // namespace kvstow::testing
