// Peers that hold what they do not use, and work that takes long: others are served all the same.
#include <gmock/gmock.h>
#include <grpcpp/support/client_callback.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "client/client.h"
#include "kvstow/v1/local.pb.h"
#include "proto/wire/local_socket.h"
#include "tests/adversary/health_probe.h"
#include "tests/adversary/tcp_peer.h"
#include "tests/client/prompt.h"
#include "tests/service/transports/get_fixture.h"

namespace kvstow::testing {
namespace {

using ::testing::Each;

constexpr char kDirectGets[] = "kvstow_direct_pages_total{method=\"get\"}";

TEST_F(ServerTest, DirectConnectionsThatAskForNothingAreClosed) {
  config_.idle_timeout = std::chrono::milliseconds(50);
  StartServer();
  v1::OpenDirectResponse out;
  ASSERT_TRUE(client_->kv().OpenDirect(client_->Context().get(), {}, &out).ok());
  EXPECT_EQ(TcpPeer(static_cast<int>(out.port())).ReceiveAll(), "");
  EXPECT_EQ(Metric("kvstow_refused_connections_total{listener=\"direct\"}"), 0);
}

TEST_F(ServerTest, AClientTakesTheEndOfAnIdleConnectionAsUsual) {
  config_.idle_timeout = std::chrono::milliseconds(50);
  StartServer();
  const KvSpec spec = kvstow::SmallSpec();
  const Prompt prompt(spec, 2 * 64, 1);
  const auto client = Client::Connect({.address = server_->address(), .attempts = 1});
  ASSERT_TRUE(client->OpenSpace({.name = "s", .spec = spec, .recipe = "raw"}).ok());
  ASSERT_THAT(OutcomesOf(client->Put("s", prompt.Puts()).get()), Each(PageOutcome::kStored));
  for (int round = 0; round < 3; ++round) {
    const double before = Metric(kDirectGets);
    ASSERT_TRUE(Eventually([&] {
      Fetch fetch(spec, prompt.keys);
      EXPECT_THAT(OutcomesOf(client->Get("s", 0, fetch.gets).get()), Each(PageOutcome::kHit));
      return Metric(kDirectGets) > before;
    }));
    ASSERT_TRUE(Eventually([&] { return Metric("kvstow_direct_connections") == 0; }));
    EXPECT_EQ(client->Lookup("s", prompt.keys).pages, 2u);
  }
}

TEST_F(ServerTest, TokensThatNobodyUsesLockNoWorkerOut) {
  config_.local_socket = (folder_ / "local").string();
  StartServer();
  const HealthProbe health(server_->http_address());
  v1::OpenLocalResponse out;
  for (int i = 0; i < 1030; ++i) {
    ASSERT_TRUE(client_->kv().OpenLocal(client_->Context().get(), {}, &out).ok());
  }
  const auto socket = LocalSocket::Connect(config_.local_socket);
  ASSERT_TRUE(socket.ok()) << socket.status();
  v1::LocalRequest hello;
  hello.mutable_hello()->set_token(out.token());
  hello.mutable_hello()->set_bytes(1);
  ASSERT_TRUE(socket->Send(hello).ok());
  v1::LocalReply welcome;
  EXPECT_TRUE(socket->Receive(welcome, std::chrono::seconds(20)).ok());
  EXPECT_TRUE(welcome.has_welcome());
}

// Reads a Verify to its end.
class Verifying final : public grpc::ClientReadReactor<v1::VerifyProgress> {
 public:
  Verifying(v1::Admin::Stub& stub, std::atomic<int>& ended) : ended_(ended) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    stub.async()->Verify(&context_, &request_, this);
    StartRead(&progress_);
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }
  void OnReadDone(bool ok) override {
    if (ok) StartRead(&progress_);
  }
  void OnDone(const grpc::Status& status) override {
    EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::CANCELLED)
        << status.error_message();
    ++ended_;
  }

 private:
  grpc::ClientContext context_;
  const v1::VerifyRequest request_;
  v1::VerifyProgress progress_;
  std::atomic<int>& ended_;
};

// All that was asked for after a row of Verify calls is done before the row is.
TEST_F(GetTest, VerifyDelaysNobody) {
  constexpr int kCalls = 100;
  // 48 MiB before they are coded, of which each Verify reads and decodes all.
  std::vector<PageIn> more;
  for (uint32_t i = 0; i < 384; ++i) {
    more.push_back({.key = std::to_string(i), .raw = pages_[0].raw, .tokens = 64});
  }
  ASSERT_TRUE(client_->Put("lossy", more).status.ok());
  const HealthProbe health(server_->http_address());
  std::atomic<int> ended = 0;
  std::vector<std::unique_ptr<Verifying>> calls;
  for (int i = 0; i < kCalls; ++i) {
    calls.push_back(std::make_unique<Verifying>(client_->admin(), ended));
  }
  ASSERT_TRUE(client_->OpenSpace("another", "raw").ok());
  v1::DeleteRequest request;
  NameSpace("s", request);
  request.add_keys("p0");
  v1::DeleteResponse response;
  ASSERT_TRUE(client_->kv().Delete(client_->Context().get(), request, &response).ok());
  EXPECT_LT(ended, kCalls / 2);
  for (const auto& call : calls) call->Cancel();
  EXPECT_TRUE(Eventually([&] { return ended == kCalls; }));
}

}  // namespace
}  // namespace kvstow::testing
