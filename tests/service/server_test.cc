// The life of a server: HTTP, start, drain and restart.
#include "service/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "tests/service/server_fixture.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

class ServerLifeTest : public ServerTest {};

TEST_F(ServerLifeTest, HttpServesProbesMetricsAndAPage) {
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("a/space.with-name_1", "raw").ok());
  int status = 0;
  EXPECT_EQ(HttpGet(server_->http_address(), "/healthz", &status), "ok\n");
  EXPECT_EQ(status, 200);
  EXPECT_EQ(HttpGet(server_->http_address(), "/readyz", &status), "ready\n");
  EXPECT_EQ(status, 200);
  const std::string page = HttpGet(server_->http_address(), "/");
  EXPECT_THAT(page, HasSubstr("a/space.with-name_1"));
  EXPECT_THAT(page, HasSubstr("64.0 MiB"));
  const std::string metrics = HttpGet(server_->http_address(), "/metrics");
  EXPECT_THAT(metrics, HasSubstr("# TYPE kvstow_encode_seconds histogram"));
  EXPECT_THAT(metrics, HasSubstr("kvstow_build_info{version=\"" + Version() + "\"} 1"));
  HttpGet(server_->http_address(), "/nothing", &status);
  EXPECT_EQ(status, 404);
}

TEST_F(ServerLifeTest, HttpCanBeOff) {
  config_.http_listen = "off";
  StartServer();
  EXPECT_EQ(server_->http_address(), "");
  EXPECT_TRUE(client_->OpenSpace("s", "raw").ok());
}

TEST_F(ServerLifeTest, AUnixSocketServes) {
  config_.listen = "unix:" + (folder_ / "kvstow.sock").string();
  StartServer();
  EXPECT_EQ(server_->address(), config_.listen);
  EXPECT_TRUE(client_->OpenSpace("s", "raw").ok());
}

TEST_F(ServerLifeTest, ARestartIsWarm) {
  config_.disk_path = DiskPath();
  config_.disk_bytes = 64 << 20;
  StartServer();
  v1::OpenSpaceResponse before, after;
  ASSERT_TRUE(client_->OpenSpace("s", "raw", &before).ok());
  PageIn page{.key = "k", .raw = RandomPage(SmallSpec(), 64, 1), .tokens = 64};
  page.ack = v1::MEMORY;  // only the flush of an orderly stop brings it to disk
  ASSERT_EQ(client_->Put("s", {page}).pages[0].status(), v1::STORED);
  StopServer();
  StartServer();
  EXPECT_EQ(client_->Get("s", {Ask("k")}).pages[0].data, page.raw) << "without OpenSpace";
  ASSERT_TRUE(client_->OpenSpace("s", "raw", &after).ok());
  EXPECT_FALSE(after.created());
  EXPECT_EQ(after.fingerprint(), before.fingerprint());
  EXPECT_EQ(client_->OpenSpace("s", "int8").error_code(), grpc::StatusCode::FAILED_PRECONDITION)
      << "a lossy space never takes an exact one's name";
}

TEST_F(ServerLifeTest, DrainLetsAStreamFinishAndTakesNoMore) {
  config_.disk_path = DiskPath();
  config_.disk_bytes = 64 << 20;
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
  const PageIn page{.key = "k", .raw = RandomPage(SmallSpec(), 64, 1), .tokens = 64};
  const auto context = client_->Context();
  const auto call = client_->kv().Put(context.get());
  call->Write(OpenPut("s"));
  v1::PutResponse response;
  ASSERT_TRUE(call->Read(&response));
  ASSERT_TRUE(call->Write(BeginPage(1, page, page.raw.substr(0, 1000))));

  auto stopped = std::async(std::launch::async, [&] { return server_->Stop(); });
  // The drain is on once new calls are refused.
  ASSERT_TRUE(Eventually([&] {
    return WireClient(server_->address()).OpenSpace("s", "raw").error_code() ==
           grpc::StatusCode::UNAVAILABLE;
  }));
  int status = 0;
  HttpGet(server_->http_address(), "/readyz", &status);
  EXPECT_EQ(status, 503);
  v1::PutRequest rest;
  rest.set_page(1);
  rest.set_offset(1000);
  rest.set_data(page.raw.substr(1000));
  ASSERT_TRUE(call->Write(rest));
  call->WritesDone();
  ASSERT_TRUE(call->Read(&response));
  EXPECT_EQ(response.results(0).status(), v1::STORED) << response.results(0).message();
  EXPECT_FALSE(call->Read(&response));
  EXPECT_TRUE(call->Finish().ok());
  EXPECT_TRUE(stopped.get().ok());
  StopServer();
  StartServer();
  EXPECT_EQ(client_->Get("s", {Ask("k")}).pages[0].data, page.raw);
}

TEST_F(ServerLifeTest, AStreamThatNeverEndsDoesNotHoldTheDrain) {
  options_.drain_grace = std::chrono::milliseconds(50);
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
  const auto put_context = client_->Context(), get_context = client_->Context();
  const auto put = client_->kv().Put(put_context.get());
  put->Write(OpenPut("s"));
  v1::PutResponse response;
  ASSERT_TRUE(put->Read(&response));
  const auto get = client_->kv().Get(get_context.get());
  v1::GetRequest open;
  NameSpace("s", *open.mutable_open());
  get->Write(open);
  EXPECT_TRUE(server_->Stop().ok());
  EXPECT_FALSE(put->Read(&response));
  EXPECT_FALSE(put->Finish().ok());
  EXPECT_FALSE(get->Finish().ok());
}

TEST_F(ServerLifeTest, TheDefaultRecipeMayBeginWithAPolicy) {
  config_.recipe = "column(name=attn_sum,seen=16)|class(power=0.2)|kvstow";
  StartServer();
  v1::OpenSpaceResponse opened;
  const grpc::Status status = client_->OpenSpace("s", "", &opened);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(opened.pipeline(), HasSubstr("class"));
}

class StartFailureTest : public ServerTest {
 protected:
  std::string Failure() {
    const auto server = Server::Start(config_, options_);
    EXPECT_FALSE(server.ok());
    return std::string(server.status().message());
  }
};

TEST_F(StartFailureTest, APortThatIsTaken) {
  StartServer();
  config_.listen = server_->address();
  EXPECT_THAT(Failure(), HasSubstr("listen: the server cannot listen at " + config_.listen));
  config_.listen = "127.0.0.1:0";
  config_.http_listen = server_->http_address();
  EXPECT_THAT(Failure(),
              HasSubstr("http-listen: the server cannot listen at " + config_.http_listen));
}

TEST_F(StartFailureTest, ASocketWithoutAFolder) {
  config_.listen = "unix:" + DiskPath() + "/none/kvstow.sock";
  EXPECT_THAT(Failure(), HasSubstr("(No such file or directory): make its folder first"));
}

TEST_F(StartFailureTest, AMasterKeyThatNobodyWaitsFor) {
  config_.disk_path = DiskPath();
  config_.disk_bytes = 64 << 20;
  config_.master_key = "file:" + DiskPath() + "/no.key";
  EXPECT_THAT(Failure(), HasSubstr("/no.key gives no key"));
}

TEST_F(StartFailureTest, AFolderThatIsHeld) {
  config_.disk_path = DiskPath();
  config_.disk_bytes = 64 << 20;
  StartServer();
  const std::string failure = Failure();
  EXPECT_THAT(failure, HasSubstr("disk-path: "));
  EXPECT_THAT(failure, HasSubstr(DiskPath()));
}

TEST_F(StartFailureTest, AFolderThatIsNone) {
  config_.disk_path = "/proc/kvstow";
  config_.disk_bytes = 64 << 20;
  EXPECT_THAT(Failure(), HasSubstr("/proc/kvstow"));
}

TEST_F(StartFailureTest, ARecipeThatIsNone) {
  config_.recipe = "int9";
  EXPECT_THAT(Failure(), HasSubstr("recipe: "));
}

TEST_F(StartFailureTest, AGpuThatIsNotThere) {
  config_.device = "cuda:99";
  const std::string failure = Failure();
  EXPECT_THAT(failure, HasSubstr("device: cuda:99: "));
  EXPECT_THAT(failure, HasSubstr("--device auto"));
  config_.device = "cpu";
  config_.gpu_bytes = 1 << 20;
  EXPECT_THAT(Failure(), HasSubstr("gpu-bytes needs a GPU"));
  config_.gpu_bytes = 0;
  config_.local_gpu_bytes = 1 << 20;
  EXPECT_THAT(Failure(), HasSubstr("local-gpu-bytes needs a GPU"));
}

}  // namespace
}  // namespace kvstow::testing
