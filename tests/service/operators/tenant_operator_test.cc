// What an operator does to tenants, over gRPC: Admin's DropTenant, RotateKey and SetQuota.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/service/access/tenants.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

class TenantOperatorTest : public TenantsTest {
 protected:
  void Encrypt() {
    const std::string master = (folder_ / "master.key").string();
    std::ofstream(master) << std::string(64, '1') << "\n";
    config_.disk_path = DiskPath();
    config_.disk_bytes = 64 << 20;
    config_.master_key = "file:" + master;
  }
  grpc::Status Drop(const std::string& tenant, v1::DropTenantResponse* out = nullptr) {
    v1::DropTenantRequest request;
    request.set_tenant(tenant);
    v1::DropTenantResponse response;
    WireClient& as = As("operator");
    return as.admin().DropTenant(as.Context().get(), request, out != nullptr ? out : &response);
  }
  grpc::Status Rotate(const std::string& tenant) {
    v1::RotateKeyRequest request;
    request.set_tenant(tenant);
    v1::RotateKeyResponse response;
    WireClient& as = As("operator");
    return as.admin().RotateKey(as.Context().get(), request, &response);
  }
  grpc::Status SetQuota(const std::string& tenant) {
    v1::SetQuotaRequest request;
    request.set_tenant(tenant);
    request.mutable_limits()->set_weight(2);
    v1::SetQuotaResponse response;
    WireClient& as = As("operator");
    return as.admin().SetQuota(as.Context().get(), request, &response);
  }
  void PutPage(const std::string& person, const std::string& space) {
    ASSERT_TRUE(As(person).OpenSpace(space, "raw").ok());
    PageIn page = Page("k", 1);
    if (!config_.disk_path.empty()) page.ack = v1::PROCESS;
    ASSERT_EQ(As(person).Put(space, {page}).pages[0].status(), v1::STORED);
  }
  void RemoveTenant(const std::string& tenant) {
    Remove(tenant + ".worker");
    Remove(tenant + ".reader");
    access_["tenants"].erase(tenant);
    access_.erase("shared_spaces");
  }
};

TEST_F(TenantOperatorTest, ADroppedTenantsSpacesGoAndNoOthersWithoutKeysToo) {
  StartServer();
  PutPage("a.worker", "s");
  PutPage("a.worker", "t");
  PutPage("b.worker", "s");
  v1::DropTenantResponse out;
  const grpc::Status dropped = Drop("a", &out);
  EXPECT_TRUE(dropped.ok()) << dropped.error_message();
  EXPECT_EQ(out.spaces(), 2u);
  EXPECT_FALSE(As("a.reader").FindSpace("s").ok());
  EXPECT_EQ(As("b.reader").Get("s", {Ask("k")}).pages[0].reply.status(), v1::HIT);
  EXPECT_EQ(server_->store().residency().Usage().pages, 1u);
  EXPECT_TRUE(Drop("a", &out).ok()) << "its line in the access file is there";
  EXPECT_EQ(Rotate("a").error_code(), grpc::StatusCode::FAILED_PRECONDITION) << "it has no keys";
}

TEST_F(TenantOperatorTest, ANameThatNoTenantHasIsRefused) {
  Encrypt();
  StartServer();
  PutPage("a.worker", "s");
  for (const std::string name : {"nosuch", "bad name/;"}) {
    for (const grpc::Status& status : {Drop(name), Rotate(name), SetQuota(name)}) {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
      EXPECT_THAT(status.error_message(), HasSubstr("there is no tenant '" + name + "'"));
      EXPECT_THAT(status.error_message(), HasSubstr("`kvstow quota` lists them"));
    }
  }
  EXPECT_EQ(Metric("kvstow_data_keys"), 1) << "no key was made";
  v1::TenantsResponse tenants;
  ASSERT_TRUE(As("operator").admin().Tenants(As("operator").Context().get(), {}, &tenants).ok());
  EXPECT_EQ(tenants.tenants_size(), 4) << "a, b, c, and the one without a name";
  EXPECT_TRUE(SetQuota("c").ok()) << "which has nothing here yet";
  EXPECT_TRUE(Rotate("c").ok());
}

TEST_F(TenantOperatorTest, ATenantOfWhichOnlyKeysAreLeftIsDropped) {
  Encrypt();
  StartServer();
  PutPage("a.worker", "s");
  v1::OpenSpaceResponse opened;
  ASSERT_TRUE(As("a.worker").FindSpace("s", &opened).ok());
  v1::DropSpaceRequest request;
  request.set_space("s");
  request.set_fingerprint(opened.fingerprint());
  v1::DropSpaceResponse response;
  WireClient& worker = As("a.worker");
  ASSERT_TRUE(worker.kv().DropSpace(worker.Context().get(), request, &response).ok());
  RemoveTenant("a");
  StopServer();
  StartServer();
  EXPECT_EQ(SetQuota("a").error_code(), grpc::StatusCode::NOT_FOUND);
  ASSERT_EQ(Metric("kvstow_data_keys"), 1);
  const grpc::Status dropped = Drop("a");
  EXPECT_TRUE(dropped.ok()) << dropped.error_message();
  EXPECT_EQ(Metric("kvstow_data_keys"), 0);
  EXPECT_EQ(Drop("a").error_code(), grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace kvstow::testing
