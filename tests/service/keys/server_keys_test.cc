// A server with a master key: restarts with the right, a wrong and no key, new keys, and the end of
// a tenant.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/digest.h"
#include "tests/service/server_fixture.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

class ServerKeysTest : public ServerTest {
 protected:
  void SetUp() override {
    config_.disk_path = DiskPath();
    config_.disk_bytes = 64 << 20;
    config_.master_key = "file:" + master_;
    SetMaster(1);
  }
  // 0 = none
  void SetMaster(uint8_t byte) {
    std::filesystem::remove(master_);
    if (byte > 0) std::ofstream(master_) << HexOf(std::vector<uint8_t>(32, byte)) << "\n";
  }
  void AddMaster(uint8_t byte) {
    std::ofstream(master_, std::ios::app) << HexOf(std::vector<uint8_t>(32, byte)) << "\n";
  }
  void Restart() {
    StopServer();
    StartServer();
  }
  PageIn PageOf(const std::string& key) {
    PageIn page{.key = key, .raw = RandomPage(SmallSpec(), 64, 1), .tokens = 64};
    page.ack = v1::PROCESS;
    return page;
  }
  v1::PageStatus Status(const std::string& space, const std::string& key) {
    return client_->Get(space, {Ask(key)}).pages[0].reply.status();
  }
  absl::StatusCode RotateKey() {
    v1::RotateKeyResponse out;
    return CodeOf(client_->admin().RotateKey(client_->Context().get(), {}, &out));
  }
  absl::StatusCode DropTenant() {
    v1::DropTenantResponse out;
    return CodeOf(client_->admin().DropTenant(client_->Context().get(), {}, &out));
  }
  static absl::StatusCode CodeOf(const grpc::Status& status) {
    return static_cast<absl::StatusCode>(status.error_code());
  }
  std::string DiskBytes() {
    std::string out;
    for (const auto& file : std::filesystem::recursive_directory_iterator(DiskPath())) {
      if (!file.is_regular_file()) continue;
      std::ifstream in(file.path(), std::ios::binary);
      out.append(std::istreambuf_iterator<char>(in), {});
    }
    return out;
  }

  const std::string master_ = (folder_ / "master.key").string();
};

TEST_F(ServerKeysTest, TheRightKeyBringsPagesBack) {
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("secret-space", "raw").ok());
  const PageIn page = PageOf("secret-key-of-a-page");
  ASSERT_EQ(client_->Put("secret-space", {page}).pages[0].status(), v1::STORED);
  EXPECT_EQ(Metric("kvstow_data_keys"), 1);
  Restart();
  EXPECT_EQ(client_->Get("secret-space", {Ask(page.key)}).pages[0].data, page.raw);
  StopServer();
  const std::string disk = DiskBytes();
  for (const std::string& text :
       {std::string("secret-space"), page.key, page.raw.substr(100, 32)}) {
    EXPECT_EQ(disk.find(text), std::string::npos) << text.substr(0, 12);
  }

  SetMaster(2);  // a wrong one: life goes on
  StartServer();
  EXPECT_EQ(Metric("kvstow_locked_data_keys"), 1);
  EXPECT_EQ(Metric("kvstow_store_locked_records_total"), 2);
  ASSERT_TRUE(client_->OpenSpace("other", "raw").ok());
  EXPECT_EQ(client_->Put("other", {page}).pages[0].status(), v1::STORED);

  StopServer();
  SetMaster(0);
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("third", "raw").ok()) << "workers go on without a disk";
  PageIn in_memory = page;
  in_memory.ack = v1::MEMORY;
  EXPECT_EQ(client_->Put("third", {in_memory}).pages[0].status(), v1::STORED);
  EXPECT_EQ(client_->Get("third", {Ask(page.key)}).pages[0].data, page.raw);

  (void)server_->Stop();  // what is only in memory cannot go to disk
  SetMaster(1);
  Restart();
  EXPECT_EQ(client_->Get("secret-space", {Ask(page.key)}).pages[0].data, page.raw);
}

TEST_F(ServerKeysTest, NewKeysAndTheEndOfATenant) {
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
  ASSERT_EQ(client_->Put("s", {PageOf("a")}).pages[0].status(), v1::STORED);
  EXPECT_EQ(RotateKey(), absl::StatusCode::kOk);
  ASSERT_EQ(client_->Put("s", {PageOf("b")}).pages[0].status(), v1::STORED);
  EXPECT_EQ(Metric("kvstow_data_keys"), 2);
  std::ofstream(master_) << HexOf(std::vector<uint8_t>(32, 3)) << "\n"
                         << HexOf(std::vector<uint8_t>(32, 1)) << "\n";
  EXPECT_TRUE(server_->Reload().ok());
  SetMaster(3);
  Restart();
  for (const char* key : {"a", "b"}) EXPECT_EQ(Status("s", key), v1::HIT) << key;

  EXPECT_EQ(DropTenant(), absl::StatusCode::kOk);
  EXPECT_EQ(server_->store().residency().Usage().pages, 0u);
  EXPECT_EQ(Metric("kvstow_data_keys"), 0);
  ASSERT_TRUE(client_->OpenSpace("s", "raw").ok()) << "a new life";
  EXPECT_EQ(Status("s", "a"), v1::MISS);
  ASSERT_EQ(client_->Put("s", {PageOf("a")}).pages[0].status(), v1::STORED);
  EXPECT_EQ(Status("s", "a"), v1::HIT);
}

// A worker makes its space anew while the key of the first is away. Then both keys are here.
TEST_F(ServerKeysTest, OfTwoSpacesOfOneNameTheNewerStays) {
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("demo", "raw").ok());
  for (const char* key : {"a", "b", "deleted"}) {
    ASSERT_EQ(client_->Put("demo", {PageOf(key)}).pages[0].status(), v1::STORED);
  }
  StopServer();
  SetMaster(2);
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("demo", "int8").ok());
  ASSERT_TRUE(client_->OpenSpace("other", "raw").ok());
  ASSERT_EQ(client_->Put("demo", {PageOf("a")}).pages[0].status(), v1::STORED);
  ASSERT_EQ(client_->Put("other", {PageOf("a")}).pages[0].status(), v1::STORED);
  StopServer();
  AddMaster(1);
  StartServer();
  EXPECT_EQ(Metric("kvstow_spaces"), 2);
  EXPECT_EQ(server_->store().residency().Usage().pages, 2u) << "no name leads to the others";
  EXPECT_EQ(Status("demo", "a"), v1::HIT);
  EXPECT_EQ(Status("demo", "b"), v1::MISS);
  EXPECT_EQ(Status("other", "a"), v1::HIT);

  v1::DropSpaceRequest drop;
  v1::DropSpaceResponse dropped;
  NameSpace("demo", drop);
  ASSERT_TRUE(client_->kv().DropSpace(client_->Context().get(), drop, &dropped).ok());
  Restart();
  EXPECT_EQ(server_->store().recovered_spaces().size(), 1u) << "what was dropped stays dropped";
  EXPECT_EQ(Metric("kvstow_spaces"), 1);
  EXPECT_EQ(server_->store().residency().Usage().pages, 1u);
}

TEST_F(ServerKeysTest, WithoutEncryptionThereAreNoKeys) {
  config_.master_key = "";
  StartServer();
  EXPECT_TRUE(server_->Reload().ok()) << "a SIGHUP is no failure";
  EXPECT_EQ(RotateKey(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(DropTenant(), absl::StatusCode::kOk) << "spaces go all the same";
}

}  // namespace
}  // namespace kvstow::testing
