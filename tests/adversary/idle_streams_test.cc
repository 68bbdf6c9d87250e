// Streams that are opened and then left alone: they make way for newcomers, and end after a while;
// an honest client that was only slow does not notice.
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "client/client.h"
#include "client/layer_put.h"
#include "tests/adversary/health_probe.h"
#include "tests/service/server_fixture.h"

namespace kvstow::testing {
namespace {

using std::chrono::seconds;

class IdleTest : public ServerTest {
 protected:
  static constexpr int kStreams = 16;

  void SetUp() override {
    config_.max_streams = kStreams;
    options_.reap_every = std::chrono::milliseconds(5);
    options_.clock = &clock_;
    StartServer();
    ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
    ASSERT_EQ(client_->Put("s", {page_}).pages.at(0).status(), v1::STORED);
    ASSERT_TRUE(Eventually([&] { return Open("put") == 0; }));
    health_.emplace(server_->http_address());
  }
  double Open(const std::string& method) {
    return Metric("kvstow_open_streams{method=\"" + method + "\"}");
  }
  static std::string PushbackOf(const grpc::ClientContext& context) {
    const auto& trailing = context.GetServerTrailingMetadata();
    const auto it = trailing.find("grpc-retry-pushback-ms");
    return it == trailing.end() ? "" : std::string(it->second.data(), it->second.size());
  }

  const PageIn page_{.key = "k", .raw = RandomPage(SmallSpec(), 64, 1), .tokens = 64};
  std::optional<HealthProbe> health_;
};

// A stream that says which space it is about, and nothing more.
template <typename Request, typename Response>
class Idle {
 public:
  using Call = grpc::ClientReaderWriter<Request, Response>;
  Idle(std::unique_ptr<grpc::ClientContext> context, std::unique_ptr<Call> call)
      : context(std::move(context)), call_(std::move(call)) {
    Request request;
    NameSpace("s", *request.mutable_open());
    EXPECT_TRUE(call_->Write(request));
  }
  grpc::Status End() {
    Response response;
    while (call_->Read(&response)) {
    }
    return call_->Finish();
  }
  const std::unique_ptr<grpc::ClientContext> context;

 private:
  const std::unique_ptr<Call> call_;
};
using IdleGet = Idle<v1::GetRequest, v1::GetResponse>;
using IdlePut = Idle<v1::PutRequest, v1::PutResponse>;

TEST_F(IdleTest, ANewcomerIsServedThoughAllStreamsAreTaken) {
  std::vector<std::unique_ptr<IdleGet>> gets;
  std::vector<std::unique_ptr<IdlePut>> puts;
  for (int i = 0; i < kStreams; ++i) {
    auto get = client_->Context(600), put = client_->Context(600);
    auto get_call = client_->kv().Get(get.get());
    auto put_call = client_->kv().Put(put.get());
    gets.push_back(std::make_unique<IdleGet>(std::move(get), std::move(get_call)));
    puts.push_back(std::make_unique<IdlePut>(std::move(put), std::move(put_call)));
  }
  ASSERT_TRUE(Eventually([&] { return Open("get") == kStreams && Open("put") == kStreams; }));
  EXPECT_EQ(client_->Get("s", {Ask("k")}).status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
      << "they may only be slow";
  clock_.Advance(seconds(2));
  EXPECT_EQ(client_->Get("s", {Ask("k")}).pages.at(0).data, page_.raw);
  EXPECT_EQ(client_->Put("s", {page_}).pages.at(0).status(), v1::ALREADY_THERE);
  EXPECT_EQ(Metric("kvstow_ended_streams_total{reason=\"crowded\"}"), 2);
  // The streams that are left end by themselves.
  clock_.Advance(seconds(60));
  for (const auto& get : gets) {
    EXPECT_EQ(get->End().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_NE(PushbackOf(*get->context), "");
  }
  for (const auto& put : puts) {
    EXPECT_EQ(put->End().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_NE(PushbackOf(*put->context), "");
  }
  EXPECT_TRUE(Eventually([&] { return Open("get") == 0 && Open("put") == 0; }));
  EXPECT_EQ(Metric("kvstow_ended_streams_total{reason=\"idle\"}"), 2 * kStreams - 2);
  EXPECT_EQ(Metric("kvstow_put_bytes"), 0);
}

TEST_F(IdleTest, AHalfSentPageIsForgottenWithItsStream) {
  auto context = client_->Context(600);
  const auto call = client_->kv().Put(context.get());
  ASSERT_TRUE(call->Write(OpenPut("s")));
  v1::PutResponse response;
  ASSERT_TRUE(call->Read(&response));
  const PageIn other{.key = "half", .raw = RandomPage(SmallSpec(), 64, 2), .tokens = 64};
  ASSERT_TRUE(call->Write(BeginPage(1, other, other.raw.substr(0, 1000))));
  ASSERT_TRUE(Eventually([&] { return server_->staging().open_tickets() == 1; }));
  clock_.Advance(seconds(61));
  while (call->Read(&response)) {
  }
  EXPECT_EQ(call->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(Eventually([&] { return Open("put") == 0; }));
  EXPECT_EQ(server_->staging().open_tickets(), 0u);
}

// The client grants credit and then reads nothing, so that a write is stuck: only a cancelled call
// gets rid of it.
TEST_F(IdleTest, AStreamWhoseClientReadsNothingEnds) {
  constexpr int kPages = 2'000;
  auto context = client_->Context(600);
  const auto call = client_->kv().Get(context.get());
  v1::GetRequest request;
  NameSpace("s", *request.mutable_open());
  for (int i = 0; i < kPages; ++i) *request.add_pages() = Ask("k", i + 1);
  request.set_credit_bytes(uint64_t{1} << 40);
  ASSERT_TRUE(call->Write(request));
  ASSERT_TRUE(Eventually([&] { return Metric("kvstow_get_bytes") > 0; }));
  ASSERT_TRUE(Eventually([&] {
    clock_.Advance(seconds(60));
    return Open("get") == 0;
  }));
  EXPECT_EQ(Metric("kvstow_get_bytes"), 0);
  v1::GetResponse response;
  int pages = 0;
  while (call->Read(&response)) pages += response.has_begin() ? 1 : 0;
  EXPECT_FALSE(call->Finish().ok());
  EXPECT_LT(pages, kPages);
}

// A worker that computes for long between two layers.
TEST_F(IdleTest, ASlowWorkerDoesNotNotice) {
  const auto client = Client::Connect(
      {.address = server_->address(), .timeout = seconds(60), .direct_connections = 0});
  const auto space = client->OpenSpace({.name = "s", .spec = SmallSpec()});
  ASSERT_TRUE(space.ok()) << space.status();
  const std::string raw = RandomPage(SmallSpec(), 64, 3);
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(raw.data()), raw.size());
  std::promise<std::vector<PutResult>> results;
  const auto put =
      client->PutLayers(*space, {{.key = "layers", .raw = bytes, .tokens = 64}},
                        [&](std::vector<PutResult> r) { results.set_value(std::move(r)); });
  put->Filled(1);
  ASSERT_TRUE(Eventually([&] { return server_->staging().open_tickets() == 1; }));
  clock_.Advance(seconds(61));
  ASSERT_TRUE(
      Eventually([&] { return Metric("kvstow_ended_streams_total{reason=\"idle\"}") == 1; }));
  put->Filled(SmallSpec().layers);
  const std::vector<PutResult> got = results.get_future().get();
  EXPECT_EQ(got.at(0).outcome, PageOutcome::kStored) << got[0].message;
  EXPECT_EQ(client_->Get("s", {Ask("layers")}).pages.at(0).data, raw);
}

}  // namespace
}  // namespace kvstow::testing
