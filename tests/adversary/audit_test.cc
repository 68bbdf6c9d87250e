// The audit log: what operators did, what was refused, and who it was.
#include "service/access/audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/log_lines.h"
#include "tests/service/access/tenants.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

class AuditTest : public TenantsTest {
 protected:
  ~AuditTest() override { StopServer(); }
  LogLines lines_{"audit"};
};

TEST_F(AuditTest, ALineIsAJsonObjectWhateverItIsAbout) {
  Audit("a \"name\"", "kvstow.v1.Admin/Evict", "tier: \"\x01\xff\"\n",
        absl::InvalidArgumentError("it's \\ wrong"));
  const std::vector<Json> lines = lines_.Take();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["identity"], "a \"name\"");
  EXPECT_EQ(lines[0]["call"], "kvstow.v1.Admin/Evict");
  EXPECT_THAT(lines[0]["arguments"].get<std::string>(), HasSubstr("tier: "));
  EXPECT_EQ(lines[0]["result"], "INVALID_ARGUMENT");
  EXPECT_EQ(lines[0]["message"], "it's \\ wrong");
}

TEST_F(AuditTest, ALineNamesRequestAndTrace) {
  Audit("", "Reload", "", absl::OkStatus(), {.request = "r1", .trace = "t1", .span = "s1"});
  Audit("", "Reload", "", absl::OkStatus());
  const std::vector<Json> lines = lines_.Take();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["request"], "r1");
  EXPECT_EQ(lines[0]["trace"], "t1");
  EXPECT_FALSE(lines[1].contains("request"));
}

TEST_F(AuditTest, AFloodOfStrangersLeavesTenLinesASecondAndItsNumber) {
  ManualClock clock;
  StrangersAudit strangers;
  const auto note = [&] {
    strangers.Note("kvstow.v1.Admin/Evict", absl::UnauthenticatedError("who?"), {.request = "r"},
                   clock.Now());
  };
  for (int i = 0; i < 500; ++i) note();
  const std::vector<Json> lines = lines_.Take();
  ASSERT_EQ(lines.size(), StrangersAudit::kLines);
  EXPECT_EQ(lines[0]["identity"], "");
  EXPECT_EQ(lines[0]["result"], "UNAUTHENTICATED");
  EXPECT_EQ(lines[0]["request"], "r");
  EXPECT_FALSE(lines[0].contains("left_out"));
  clock.Advance(std::chrono::seconds(1));
  note();
  const std::vector<Json> next = lines_.Take();
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0]["left_out"], 500 - StrangersAudit::kLines);
}

TEST_F(AuditTest, KeepsWhatOperatorsDidAndWhatWasRefused) {
  StartServer();
  v1::EvictRequest evict;
  evict.set_tier("host");
  evict.set_to_bytes(1000);
  v1::EvictResponse evicted;
  const auto call = [&](WireClient& client) {
    const auto context = client.Context();
    context->AddMetadata("x-request-id", "r-1");
    (void)client.admin().Evict(context.get(), evict, &evicted);
    return lines_.Take();
  };
  const std::vector<Json> done = call(As("operator"));
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0]["identity"], "token:operator");
  EXPECT_EQ(done[0]["call"], "kvstow.v1.Admin/Evict");
  EXPECT_THAT(done[0]["arguments"].get<std::string>(), HasSubstr("to_bytes: 1000"));
  EXPECT_EQ(done[0]["result"], "OK");
  EXPECT_EQ(done[0]["request"], "r-1");
  const std::vector<Json> refused = call(As("a.worker"));
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0]["identity"], "token:a.worker");
  EXPECT_EQ(refused[0]["result"], "PERMISSION_DENIED");
  EXPECT_EQ(refused[0]["request"], "r-1");
  const std::vector<Json> stranger = call(*client_);
  ASSERT_EQ(stranger.size(), 1u);
  EXPECT_EQ(stranger[0]["identity"], "");
  EXPECT_EQ(stranger[0]["result"], "UNAUTHENTICATED");
  v1::StatusResponse status;
  EXPECT_TRUE(As("operator").admin().Status(As("operator").Context().get(), {}, &status).ok());
  EXPECT_EQ(lines_.Take().size(), 1u) << "reading is kept too";
  EXPECT_TRUE(As("a.worker").OpenSpace("s", "raw").ok());
  EXPECT_TRUE(lines_.Take().empty()) << "a worker's calls are not";
  ASSERT_TRUE(server_->Reload().ok());
  const std::vector<Json> reload = lines_.Take();
  ASSERT_EQ(reload.size(), 1u);
  EXPECT_EQ(reload[0]["call"], "Reload");
}

TEST_F(AuditTest, KeepsWhatABlobIsForAndNotTheBlob) {
  options_.clock = &clock_;
  StartServer();
  const auto begin = [&](grpc::ClientContext& context, v1::SendStatisticsResponse& response) {
    auto writer = As("a.worker").kv().SendStatistics(&context, &response);
    v1::SendStatisticsRequest request;
    request.set_space("chat");
    request.set_data("secret");
    EXPECT_TRUE(writer->Write(request));
    writer->WaitForInitialMetadata();
    return writer;
  };
  v1::SendStatisticsResponse response, refused;
  const auto context = As("a.worker").Context(), another = As("a.worker").Context();
  const auto writer = begin(*context, response);
  auto second = As("a.worker").kv().SendStatistics(another.get(), &refused);
  EXPECT_EQ(second->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  std::vector<Json> lines = lines_.Take();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["call"], "kvstow.v1.KvCache/SendStatistics");
  EXPECT_EQ(lines[0]["result"], "RESOURCE_EXHAUSTED");
  writer->WritesDone();
  EXPECT_FALSE(writer->Finish().ok());
  lines = lines_.Take();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["identity"], "token:a.worker");
  EXPECT_EQ(lines[0]["arguments"], "space: \"chat\" bytes: 6");
  EXPECT_EQ(lines[0]["result"], "INVALID_ARGUMENT");
}

class AuditWithoutIdentitiesTest : public ServerTest {};

TEST_F(AuditWithoutIdentitiesTest, KeepsChangesAlone) {
  LogLines lines("audit");
  StartServer();
  v1::StatusResponse status;
  EXPECT_TRUE(client_->admin().Status(client_->Context().get(), {}, &status).ok());
  EXPECT_TRUE(lines.Take().empty());
  v1::FlushResponse flushed;
  EXPECT_TRUE(client_->admin().Flush(client_->Context().get(), {}, &flushed).ok());
  EXPECT_EQ(lines.Take().size(), 1u);
  StopServer();
}

}  // namespace
}  // namespace kvstow::testing
