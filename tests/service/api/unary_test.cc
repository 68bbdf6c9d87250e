// Unary calls, health and reflection: what they answer and what they refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "proto/wire/spec.h"
#include "service/server.h"
#include "tests/service/raw_call.h"
#include "tests/service/server_fixture.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

std::string Health(const WireClient& client, const std::string& service) {
  std::string response;
  const std::string request =
      service.empty() ? "" : "\x0a" + std::string(1, static_cast<char>(service.size())) + service;
  const grpc::Status status =
      RawCall(client.channel(), "/grpc.health.v1.Health/Check", request, &response);
  return status.ok() ? response : status.error_message();
}

class UnaryTest : public ServerTest {};

TEST_F(UnaryTest, HealthAndReflectionAreThere) {
  StartServer();
  const std::string serving = "\x08\x01";
  EXPECT_EQ(Health(*client_, ""), serving);
  EXPECT_EQ(Health(*client_, "kvstow.v1.KvCache"), serving);
  std::string services;
  EXPECT_TRUE(RawCall(client_->channel(),
                      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                      std::string("\x3a\x00", 2), &services)
                  .ok());
  EXPECT_THAT(services, HasSubstr("kvstow.v1.KvCache"));
  EXPECT_THAT(services, HasSubstr("kvstow.v1.Admin"));
}

TEST_F(UnaryTest, EveryCallNeedsADeadline) {
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
  const auto expect = [](const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(status.error_message(), HasSubstr("deadline"));
  };
  grpc::ClientContext lookup, open, put, get, status_call, verify;
  v1::LookupResponse found;
  expect(client_->kv().Lookup(&lookup, {}, &found));
  v1::OpenSpaceResponse opened;
  expect(client_->kv().OpenSpace(&open, {}, &opened));
  expect(client_->kv().Put(&put)->Finish());
  expect(client_->kv().Get(&get)->Finish());
  v1::StatusResponse status;
  expect(client_->admin().Status(&status_call, {}, &status));
  expect(client_->admin().Verify(&verify, {})->Finish());
  EXPECT_EQ(Metric("kvstow_refused_calls_total{reason=\"no_deadline\"}"), 6);
}

TEST_F(UnaryTest, OpenSpaceSaysWhatASpaceIsAndWhatDiffers) {
  StartServer();
  v1::OpenSpaceResponse made, again;
  ASSERT_TRUE(client_->OpenSpace("s", "int8", &made).ok());
  EXPECT_TRUE(made.created());
  EXPECT_EQ(made.fingerprint().size(), 16u);
  EXPECT_EQ(made.pipeline(), "affine(bits=8,group=64)");
  EXPECT_EQ(made.fidelity(), v1::DENSE);
  EXPECT_EQ(made.raw_bytes_per_token(), 2048u);
  EXPECT_EQ(made.levels(), 1u);
  ASSERT_TRUE(client_->OpenSpace("s", "affine(bits=8,group=64)", &again).ok());
  EXPECT_FALSE(again.created());
  EXPECT_EQ(again.fingerprint(), made.fingerprint());

  v1::OpenSpaceRequest request;
  request.set_space("s");
  v1::OpenSpaceResponse found;
  ASSERT_TRUE(client_->kv().OpenSpace(client_->Context().get(), request, &found).ok());
  EXPECT_EQ(found.spec().layers(), 4u);

  KvSpec other = SmallSpec();
  other.layers = 5;
  ToProto(other, *request.mutable_spec());
  const grpc::Status differs = client_->kv().OpenSpace(client_->Context().get(), request, &found);
  EXPECT_EQ(differs.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(differs.error_message(), HasSubstr("layers: 4 here, 5 asked"));

  EXPECT_EQ(client_->OpenSpace("t", "knorm(keep=0.5)|int8", nullptr, v1::DENSE).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(client_->OpenSpace("t", "int8", nullptr, v1::EXACT).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(client_->OpenSpace("t", "raw", nullptr, static_cast<v1::Fidelity>(9)).error_message(),
              HasSubstr("fidelity: 9"));
  EXPECT_EQ(client_->OpenSpace("t", "no-such-recipe").error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(UnaryTest, UnaryCallsRefuseWhatTheyCannotMean) {
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
  v1::LookupRequest lookup;
  v1::LookupResponse found;
  NameSpace("nowhere", lookup);
  EXPECT_EQ(client_->kv().Lookup(client_->Context().get(), lookup, &found).error_code(),
            grpc::StatusCode::NOT_FOUND);
  NameSpace("s", lookup);
  lookup.add_keys("fine");
  lookup.add_keys(std::string(65, 'k'));
  const grpc::Status long_key = client_->kv().Lookup(client_->Context().get(), lookup, &found);
  EXPECT_EQ(long_key.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(long_key.error_message(), HasSubstr("keys[1] has 65 bytes"));
  lookup.clear_keys();
  for (int i = 0; i < 65537; ++i) lookup.add_keys("k");
  EXPECT_EQ(client_->kv().Lookup(client_->Context().get(), lookup, &found).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  v1::EvictRequest evict;
  v1::EvictResponse evicted;
  evict.set_tier("attic");
  EXPECT_EQ(client_->admin().Evict(client_->Context().get(), evict, &evicted).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(UnaryTest, ABudgetIsSetWithoutARestart) {
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
  const PageIn page{.key = "page", .raw = RandomPage(SmallSpec(), 64, 1), .tokens = 64};
  client_->Put("s", {page});
  v1::SetBudgetRequest request;
  v1::SetBudgetResponse response;
  const auto set = [&](const char* tier, uint64_t bytes) {
    request.set_tier(tier);
    request.set_bytes(bytes);
    return client_->admin().SetBudget(client_->Context().get(), request, &response).error_code();
  };
  EXPECT_EQ(set("attic", 1), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(set("gpu", 1), grpc::StatusCode::FAILED_PRECONDITION) << "it was started without one";
  EXPECT_EQ(set("host", 10 * page.raw.size()), grpc::StatusCode::OK);
  EXPECT_EQ(response.usage().budget_bytes(), 10 * page.raw.size());
  EXPECT_EQ(client_->Get("s", {Ask("page")}).pages[0].data, page.raw);
  EXPECT_EQ(set("host", page.raw.size() / 2), grpc::StatusCode::OK);
  EXPECT_EQ(response.usage().encoded_bytes(), 0u);
  EXPECT_EQ(client_->Get("s", {Ask("page")}).pages[0].reply.status(), v1::MISS);
  EXPECT_EQ(client_->Usage().tiers(1).budget_bytes(), page.raw.size() / 2);
}

TEST_F(UnaryTest, PinEvictUsageAndStatusTellTheTruth) {
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
  const PageIn kept{.key = "kept", .raw = RandomPage(SmallSpec(), 64, 1), .tokens = 64};
  const PageIn gone{.key = "gone", .raw = RandomPage(SmallSpec(), 64, 2), .tokens = 64};
  client_->Put("s", {kept, gone});
  v1::PinRequest pin;
  NameSpace("s", pin);
  pin.add_keys("kept");
  pin.add_keys("nothing");
  v1::PinResponse pinned;
  ASSERT_TRUE(client_->kv().Pin(client_->Context().get(), pin, &pinned).ok());
  EXPECT_EQ(pinned.status(0), v1::HIT);
  EXPECT_EQ(pinned.status(1), v1::MISS);

  v1::UsageResponse usage = client_->Usage();
  EXPECT_EQ(usage.pages(), 2u);
  EXPECT_EQ(usage.raw_bytes(), 2 * kept.raw.size());
  EXPECT_EQ(usage.pinned_pages(), 1u);
  ASSERT_EQ(usage.spaces_size(), 1);
  EXPECT_EQ(usage.spaces(0).space(), "s");
  EXPECT_EQ(usage.spaces(0).pages(), 2u);
  EXPECT_EQ(usage.counters().at("puts"), 2u);
  ASSERT_EQ(usage.tiers_size(), 3);
  EXPECT_EQ(usage.tiers(1).tier(), "host");
  EXPECT_EQ(usage.tiers(1).budget_bytes(), config_.host_bytes);

  v1::EvictRequest evict;
  evict.set_tier("host");
  evict.set_to_bytes(kept.raw.size() * 3 / 2);
  v1::EvictResponse evicted;
  ASSERT_TRUE(client_->admin().Evict(client_->Context().get(), evict, &evicted).ok());
  EXPECT_LE(evicted.usage().encoded_bytes(), evict.to_bytes());
  EXPECT_EQ(client_->Get("s", {Ask("kept")}).pages[0].data, kept.raw) << "pinned pages stay";
  EXPECT_EQ(client_->Get("s", {Ask("gone")}).pages[0].reply.status(), v1::MISS);

  v1::StatusResponse status;
  ASSERT_TRUE(client_->admin().Status(client_->Context().get(), {}, &status).ok());
  EXPECT_EQ(status.version(), Version());
  EXPECT_EQ(status.device(), "cpu");
  EXPECT_TRUE(status.ready());
  EXPECT_EQ(status.config().at("host-bytes"), "64.0 MiB");
  EXPECT_NE(status.libraries().count("gRPC"), 0u);
}

}  // namespace
}  // namespace kvstow::testing
