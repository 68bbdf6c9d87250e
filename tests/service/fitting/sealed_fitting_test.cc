// Fits on a server with a master key: their tables lie on disk sealed, as pages do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/match.h"
#include "base/digest.h"
#include "service/spaces/sealed_tables.h"
#include "tests/paths.h"
#include "tests/service/fitting/auto_space.h"

namespace kvstow::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace fs = std::filesystem;

class SealedFitTest : public AutoSpaceTest {
 protected:
  void SetUp() override {
    config_.master_key = "file:" + master_;
    SetMaster({1});
    AutoSpaceTest::SetUp();
  }
  // The first wraps.
  void SetMaster(const std::vector<uint8_t>& bytes) {
    fs::remove(master_);
    for (const uint8_t byte : bytes) {
      std::ofstream(master_, std::ios::app) << HexOf(std::vector<uint8_t>(32, byte)) << "\n";
    }
  }
  // Starts a server that looks for pages to fit to, or not.
  void Start(bool fits) {
    options_.fit_look_every = fits ? Duration(std::chrono::milliseconds(1)) : std::chrono::hours(1);
    StartServer();
  }
  void Restart(bool fits) {
    StopServer();
    Start(fits);
  }
  // Puts pages, and waits for the form that is fitted to them.
  v1::FittedForm PutAndFit(const std::string& space) {
    Open(space);
    Put(space, 0, 40);
    EXPECT_TRUE(Eventually([&] { return !Fitted(space).recipe().empty(); }))
        << Fitted(space).note();
    return Fitted(space);
  }
  // Whether the space has a form that an earlier server fitted.
  bool HasOldForm(const std::string& space) {
    const v1::FittedForm form = Fitted(space);
    return !form.recipe().empty() &&
           absl::StartsWith(form.note(), "fitted before the server started");
  }
  std::vector<fs::path> Files() const {
    std::vector<fs::path> out;
    for (const auto& file : fs::directory_iterator(FittedFolder())) out.push_back(file.path());
    return out;
  }
  // Returns whether any file of the server has the text.
  bool OnDisk(const std::string& text) const {
    for (const auto& file : fs::recursive_directory_iterator(folder_)) {
      if (!file.is_regular_file()) continue;
      std::ifstream in(file.path(), std::ios::binary);
      const std::string bytes((std::istreambuf_iterator<char>(in)), {});
      if (bytes.find(text) != std::string::npos) return true;
    }
    return false;
  }
  grpc::Status DropTenant() {
    v1::DropTenantResponse out;
    return client_->admin().DropTenant(client_->Context().get(), {}, &out);
  }

  const std::string master_ = (folder_ / "master.key").string();
};

// Part of the statistics of OnlyHeadZero: gains of one head and the other, after each other.
std::string PartOfStatistics() {
  const std::string blob = *StatsCalibration(Spec(), OnlyHeadZero());
  return blob.substr(blob.size() / 2, 64);
}

TEST_F(SealedFitTest, AProcessFitsAndARestartKeepsTheForm) {
  StopServer();
  options_.fit_program = ProgramPath("kvstowd");
  config_.fit_bytes = uint64_t{1} << 62;  // AddressSanitizer maps terabytes
  StartServer();
  EXPECT_TRUE(Open("s").wants_statistics());
  ASSERT_TRUE(SendStatistics("s", *StatsCalibration(Spec(), OnlyHeadZero())).ok());
  const v1::FittedForm form = PutAndFit("s");
  EXPECT_THAT(form.recipe(), StartsWith("kvstow-cal("));
  MakeCold();
  const std::string cold = RecipeOf("s", "p7");
  EXPECT_THAT(cold, AllOf(StartsWith("joint("), HasSubstr("blob=")));
  Restart(false);
  EXPECT_FALSE(Open("s").wants_statistics());
  EXPECT_TRUE(HasOldForm("s")) << Fitted("s").note();
  EXPECT_EQ(RecipeOf("s", "p7"), cold) << "its tables came back";
  EXPECT_EQ(Metric("kvstow_fit_locked_tables_total"), 0);
  EXPECT_EQ(Metric("kvstow_fit_damaged_tables_total"), 0);
  StopServer();
  EXPECT_GE(Files().size(), 2u) << "tables and statistics";
  // The note of the tables says their recipe.
  for (const std::string& text : {form.recipe(), PartOfStatistics(), std::string("kvstow-cal")}) {
    EXPECT_FALSE(OnDisk(text)) << text;
  }
}

TEST_F(SealedFitTest, WhatIsFittedInClearIsFoundOnDisk) {
  StopServer();
  fs::remove_all(DiskPath());  // it began with keys
  config_.master_key = "";
  StartServer();
  Open("s");
  ASSERT_TRUE(SendStatistics("s", *StatsCalibration(Spec(), OnlyHeadZero())).ok());
  const v1::FittedForm form = PutAndFit("s");
  MakeCold();
  const std::string cold = RecipeOf("s", "p7");
  EXPECT_TRUE(OnDisk(form.recipe())) << "else the other tests find nothing by chance";
  EXPECT_TRUE(OnDisk(PartOfStatistics()));

  // The store gets a master key: what was in clear stays readable, what comes is sealed.
  StopServer();
  config_.master_key = "file:" + master_;
  Start(false);
  EXPECT_FALSE(Open("s").wants_statistics());
  EXPECT_TRUE(HasOldForm("s")) << Fitted("s").note();
  EXPECT_EQ(RecipeOf("s", "p7"), cold);
  Open("t");
  ASSERT_TRUE(SendStatistics("t", *StatsCalibration(Spec(), OnlyHeadZero())).ok());
  size_t sealed = 0;
  for (const fs::path& path : Files()) {
    std::ifstream in(path, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(in)), {});
    sealed += IsSealedTables(AsBytes(bytes));
  }
  EXPECT_GE(sealed, 1u);
}

TEST_F(SealedFitTest, NewKeysKeepTheTables) {
  PutAndFit("s");
  v1::RotateKeyResponse rotated;
  ASSERT_TRUE(client_->admin().RotateKey(client_->Context().get(), {}, &rotated).ok());
  ASSERT_TRUE(SendStatistics("s", *StatsCalibration(Spec(), OnlyHeadZero())).ok());
  SetMaster({3, 1});
  ASSERT_TRUE(server_->Reload().ok());
  SetMaster({3});
  Restart(false);
  EXPECT_FALSE(Open("s").wants_statistics()) << "sealed by the second data key";
  EXPECT_TRUE(HasOldForm("s")) << Fitted("s").note();
  EXPECT_EQ(Metric("kvstow_fit_locked_tables_total"), 0);
}

TEST_F(SealedFitTest, DamagedTablesAreMissesAndTheSpaceGoesOn) {
  PutAndFit("s");
  MakeCold();
  ASSERT_THAT(RecipeOf("s", "p7"), StartsWith("joint("));
  StopServer();
  const std::vector<fs::path> files = Files();
  ASSERT_FALSE(files.empty());
  for (const fs::path& path : files) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(-100, std::ios::end);
    const int byte = file.get();
    file.seekp(-100, std::ios::end);
    file.put(static_cast<char>(byte ^ 1));
  }
  Start(false);
  EXPECT_EQ(Metric("kvstow_fit_damaged_tables_total"), static_cast<double>(files.size()));
  Open("s");
  EXPECT_TRUE(Fitted("s").recipe().empty()) << "the form that it began with";
  EXPECT_EQ(RecipeOf("s", "p7"), "a miss");
  Restart(true);
  Open("s");
  Put("s", 100, 140);
  EXPECT_TRUE(Eventually([&] { return !Fitted("s").recipe().empty(); })) << Fitted("s").note();
  MakeCold();
  EXPECT_THAT(RecipeOf("s", "p107"), StartsWith("joint("));
}

TEST_F(SealedFitTest, TheEndOfATenantIsTheEndOfItsTables) {
  PutAndFit("s");
  const fs::path kept = folder_ / "kept";
  fs::copy(FittedFolder(), kept);
  ASSERT_TRUE(DropTenant().ok());
  EXPECT_TRUE(fs::is_empty(FittedFolder()));
  StopServer();
  for (const auto& file : fs::directory_iterator(kept)) {
    fs::copy(file.path(), FittedFolder() / file.path().filename());
  }
  const size_t files = Files().size();
  ASSERT_GT(files, 0u);
  Start(false);
  EXPECT_EQ(Metric("kvstow_fit_locked_tables_total"), static_cast<double>(files))
      << "nobody has their key";
}

TEST_F(SealedFitTest, WithoutAKeyNothingIsFittedAndWithItAllComesBack) {
  PutAndFit("s");
  StopServer();
  SetMaster({});
  StartServer();
  EXPECT_GE(Metric("kvstow_fit_locked_tables_total"), 1);
  Open("t");
  std::vector<PageIn> pages;
  for (uint64_t i = 0; i < 40; ++i) {
    pages.push_back(Page(i));
    pages.back().ack = v1::MEMORY;
  }
  ASSERT_EQ(client_->Put("t", pages).pages[0].status(), v1::STORED);
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(Fitted("t").note(), "there is no master key");
  })) << Fitted("t").note();
  const grpc::Status sent = SendStatistics("t", *StatsCalibration(Spec(), OnlyHeadZero()));
  EXPECT_EQ(sent.error_code(), grpc::StatusCode::UNAVAILABLE) << sent.error_message();
  (void)server_->Stop();  // what is only in memory cannot go to disk
  SetMaster({1});
  Restart(false);
  Open("s");
  EXPECT_TRUE(HasOldForm("s")) << Fitted("s").note();
}

TEST_F(SealedFitTest, WithoutADiskTablesStayInMemory) {
  StopServer();
  config_.disk_path = "";
  config_.disk_bytes = 0;
  config_.calibrations = (folder_ / "calibrations").string();
  fs::create_directory(config_.calibrations);
  StartServer();
  PutAndFit("s");
  EXPECT_TRUE(fs::is_empty(config_.calibrations));
}

}  // namespace
}  // namespace kvstow::testing
