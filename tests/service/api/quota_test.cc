// SetQuota, Tenants and Drain, over gRPC.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>

#include "tests/service/server_fixture.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

class QuotaTest : public ServerTest {
 protected:
  grpc::Status SetQuota(const v1::TenantLimits& limits, v1::TenantUsage* out = nullptr) {
    v1::SetQuotaRequest request;
    *request.mutable_limits() = limits;
    v1::SetQuotaResponse response;
    const grpc::Status status =
        client_->admin().SetQuota(client_->Context().get(), request, &response);
    if (out != nullptr) *out = response.tenant();
    return status;
  }
  static v1::TenantLimits Host(uint64_t limit, uint64_t guarantee = 0) {
    v1::TenantLimits limits;
    v1::TierQuota& quota = *limits.add_tiers();
    quota.set_tier("host");
    quota.set_limit_bytes(limit);
    quota.set_guarantee_bytes(guarantee);
    return limits;
  }
  v1::TenantUsage Tenant() {
    v1::TenantsResponse response;
    const grpc::Status status = client_->admin().Tenants(client_->Context().get(), {}, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.tenants_size(), 1);
    return response.tenants(0);
  }
  // A page of 128 KiB.
  static PageIn Page(int i) {
    return {.key = "k" + std::to_string(i),
            .raw = RandomPage(SmallSpec(), 64, static_cast<uint32_t>(i)),
            .tokens = 64};
  }
  v1::PutResult Put(int i) { return client_->Put("s", {Page(i)}).pages[0]; }
  v1::DrainResponse Drain(uint64_t grace_ms, bool resume = false) {
    v1::DrainRequest request;
    request.set_grace_ms(grace_ms);
    request.set_resume(resume);
    v1::DrainResponse response;
    const grpc::Status status =
        client_->admin().Drain(client_->Context().get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  bool Ready() {
    int status = 0;
    HttpGet(server_->http_address(), "/readyz", &status);
    return status == 200;
  }
};

TEST_F(QuotaTest, ASmallerLimitMakesPagesLeave) {
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
  for (int i = 0; i < 6; ++i) ASSERT_EQ(Put(i).status(), v1::STORED);
  EXPECT_EQ(Tenant().pages(), 6u);
  EXPECT_EQ(Tenant().put_bytes(), 6u * (128 << 10));
  v1::TenantUsage after;
  ASSERT_TRUE(SetQuota(Host(300 << 10), &after).ok());
  EXPECT_EQ(after.pages(), 2u);
  EXPECT_EQ(after.limits().tiers(1).limit_bytes(), uint64_t{300 << 10});
  ASSERT_EQ(Put(7).status(), v1::STORED);
  EXPECT_EQ(Tenant().pages(), 2u);
  ASSERT_TRUE(SetQuota(Host(100 << 10)).ok());
  const v1::PutResult refused = Put(8);
  EXPECT_EQ(refused.status(), v1::REFUSED);
  EXPECT_THAT(refused.message(), HasSubstr("the tenant's limit"));
}

TEST_F(QuotaTest, WhatIsAbsentStays) {
  StartServer();
  v1::TenantLimits limits = Host(1 << 20, 1 << 10);
  limits.set_weight(3);
  limits.set_streams(5);
  ASSERT_TRUE(SetQuota(limits).ok());
  v1::TenantLimits more;
  more.set_pages(9);
  v1::TenantUsage after;
  ASSERT_TRUE(SetQuota(more, &after).ok());
  EXPECT_EQ(after.limits().weight(), 3);
  EXPECT_EQ(after.limits().streams(), 5u);
  EXPECT_EQ(after.limits().pages(), 9u);
  EXPECT_EQ(after.limits().tiers(1).guarantee_bytes(), 1u << 10);
}

TEST_F(QuotaTest, WrongQuotasAreNamed) {
  StartServer();
  const auto expect = [&](const v1::TenantLimits& limits, grpc::StatusCode code,
                          const char* message) {
    const grpc::Status status = SetQuota(limits);
    EXPECT_EQ(status.error_code(), code);
    EXPECT_THAT(status.error_message(), HasSubstr(message));
  };
  v1::TenantLimits wrong;
  wrong.set_weight(-1);
  expect(wrong, grpc::StatusCode::INVALID_ARGUMENT, "weight is -1");
  wrong = Host(1);
  wrong.mutable_tiers(0)->set_tier("tape");
  expect(wrong, grpc::StatusCode::INVALID_ARGUMENT, "use gpu, host or disk");
  expect(Host(10, 11), grpc::StatusCode::INVALID_ARGUMENT, "is more than the limit");
  expect(Host(0, uint64_t{1} << 50), grpc::StatusCode::FAILED_PRECONDITION, "low watermark");
  wrong = Host(0, 1);
  wrong.mutable_tiers(0)->set_tier("disk");
  expect(wrong, grpc::StatusCode::FAILED_PRECONDITION, "there is no disk tier");
  v1::TenantsRequest request;
  request.set_tenant("nobody");
  v1::TenantsResponse response;
  EXPECT_EQ(client_->admin().Tenants(client_->Context().get(), request, &response).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(QuotaTest, StreamsAndBandwidthAreRefusedBeyondTheirLimits) {
  options_.clock = &clock_;
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
  ASSERT_EQ(Put(1).status(), v1::STORED);
  v1::TenantLimits limits;
  limits.set_streams(1);
  limits.set_put_bytes_per_second(128 << 10);
  limits.set_get_bytes_per_second(128 << 10);
  ASSERT_TRUE(SetQuota(limits).ok());
  ASSERT_EQ(Put(2).status(), v1::STORED);
  const v1::PutResult put = Put(3);
  EXPECT_EQ(put.status(), v1::REFUSED);
  EXPECT_THAT(put.message(), HasSubstr("try again in"));
  EXPECT_EQ(client_->Get("s", {Ask("k1")}).pages[0].reply.status(), v1::HIT);
  EXPECT_EQ(client_->Get("s", {Ask("k1")}).pages[0].reply.status(), v1::UNAVAILABLE);
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_EQ(Put(3).status(), v1::STORED);
  EXPECT_EQ(client_->Get("s", {Ask("k1")}).pages[0].data, Page(1).raw);

  const auto context = client_->Context();
  const auto call = client_->kv().Put(context.get());
  call->Write(OpenPut("s"));
  v1::PutResponse credit;
  ASSERT_TRUE(call->Read(&credit));
  EXPECT_EQ(client_->Get("s", {Ask("k1")}).status.error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Tenant().streams(), 1u);
  EXPECT_EQ(Tenant().refused(), 3u);
  call->WritesDone();
  while (call->Read(&credit)) {
  }
  EXPECT_TRUE(call->Finish().ok());
}

TEST_F(QuotaTest, ADrainedServerAnswersAndComesBack) {
  config_.disk_path = DiskPath();
  config_.disk_bytes = 64 << 20;
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
  PageIn page = Page(1);
  page.ack = v1::MEMORY;
  ASSERT_EQ(client_->Put("s", {page}).pages[0].status(), v1::STORED);
  EXPECT_TRUE(Ready());
  for (int again = 0; again < 2; ++again) {
    const v1::DrainResponse left = Drain(20'000);
    EXPECT_TRUE(left.draining());
    EXPECT_TRUE(left.flushed()) << left.flush_error();
    EXPECT_EQ(left.ended_streams() + left.put_streams() + left.get_streams(), 0u);
  }
  EXPECT_FALSE(Ready());
  EXPECT_GT(client_->Usage().tiers(2).encoded_bytes(), 0u) << "it is on disk";
  EXPECT_EQ(client_->Lookup("s", {"k1"}, false).pages(), 1u);
  EXPECT_EQ(client_->Put("s", {Page(2)}).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(Drain(0, /*resume=*/true).draining());
  EXPECT_TRUE(Ready());
  EXPECT_EQ(Put(2).status(), v1::STORED);
}

TEST_F(QuotaTest, DrainEndsWhatDoesNotFinish) {
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
  const auto context = client_->Context();
  const auto call = client_->kv().Put(context.get());
  call->Write(OpenPut("s"));
  v1::PutResponse response;
  ASSERT_TRUE(call->Read(&response));
  const v1::DrainResponse left = Drain(10);
  EXPECT_EQ(left.ended_streams(), 1u);
  EXPECT_EQ(left.put_streams(), 0u);
  EXPECT_TRUE(left.flushed());
  EXPECT_FALSE(call->Read(&response));
  EXPECT_EQ(call->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(QuotaTest, ADrainTakesAPageThatHasBegunAndNoOther) {
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
  const PageIn page = Page(1);
  const auto context = client_->Context();
  const auto call = client_->kv().Put(context.get());
  call->Write(OpenPut("s"));
  v1::PutResponse response;
  ASSERT_TRUE(call->Read(&response));
  ASSERT_TRUE(call->Write(BeginPage(1, page, page.raw.substr(0, 1000))));
  ASSERT_TRUE(Eventually([&] { return Metric("kvstow_staged_bytes") > 0; }));
  std::thread drain([&] { Drain(20'000); });
  ASSERT_TRUE(Eventually([&] { return !Ready(); }));
  v1::PutRequest rest;
  rest.set_page(1);
  rest.set_offset(1000);
  rest.set_data(page.raw.substr(1000));
  ASSERT_TRUE(call->Write(rest));
  ASSERT_TRUE(call->Write(BeginPage(2, Page(2), "")));
  call->WritesDone();
  std::map<uint64_t, v1::PutResult> results;
  while (call->Read(&response)) {
    for (const v1::PutResult& result : response.results()) results[result.page()] = result;
  }
  EXPECT_TRUE(call->Finish().ok());
  drain.join();
  EXPECT_EQ(results[1].status(), v1::STORED) << results[1].message();
  EXPECT_EQ(results[2].status(), v1::REFUSED);
  EXPECT_THAT(results[2].message(), HasSubstr("drains"));
}

}  // namespace
}  // namespace kvstow::testing
