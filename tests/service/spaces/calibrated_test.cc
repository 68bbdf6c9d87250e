// Spaces whose recipe needs a calibration: the server finds it by its hash, keeps to it, and does
// without it as a cache does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/bytes.h"
#include "base/digest.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "proto/wire/spec.h"
#include "service/spaces/calibrations.h"
#include "tests/kernels/correlated_pages.h"
#include "tests/service/server_fixture.h"

namespace kvstow::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kRecipe[] = "kvstow-cal(run=2)";
constexpr uint32_t kTokens = 128;

class CalibratedTest : public ServerTest {
 protected:
  void SetUp() override {
    config_.calibrations = (folder_ / "calibrations").string();
    config_.disk_path = DiskPath();
    config_.disk_bytes = 64 << 20;
    std::filesystem::create_directory(config_.calibrations);
    const auto blob = FitCorrelated(CorrelatedSpec(), 2);
    ASSERT_TRUE(blob.ok()) << blob.status();
    blob_ = *blob;
    const auto raw = CorrelatedPage(CorrelatedSpec(), kTokens, 5);
    page_ = {.key = "p", .raw = std::string(AsString(raw)), .tokens = kTokens};
  }
  std::string BlobPath() const { return config_.calibrations + "/a blob"; }
  static void Write(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  grpc::Status Open(const std::string& space, const std::string& recipe,
                    v1::OpenSpaceResponse* out) {
    v1::OpenSpaceRequest request;
    request.set_space(space);
    request.set_recipe(recipe);
    KvSpec spec = CorrelatedSpec();
    spec.revision = "1";
    ToProto(spec, *request.mutable_spec());
    const auto context = client_->Context();
    return client_->kv().OpenSpace(context.get(), request, out);
  }
  void Restart() {
    StopServer();
    StartServer();
  }
  PageOut Get(v1::Payload payload = v1::RAW) {
    const auto got = client_->Get("s", {Ask("p")}, 0, payload);
    EXPECT_TRUE(got.status.ok()) << got.status.error_message();
    return got.pages.size() == 1 ? got.pages[0] : PageOut{};
  }
  // What the codec gives without a server.
  std::string Local() const {
    CalibrationStore store;
    EXPECT_TRUE(store.Add(AsBytes(blob_)).ok());
    const auto codec = MakeCodec(*ParseRecipe(kRecipe), CorrelatedSpec(), store);
    const auto page = (*codec)->Encode({.raw = AsBytes(page_.raw), .tokens = kTokens});
    std::vector<uint8_t> out(page_.raw.size());
    EXPECT_TRUE(DecodePage(page->header, page->segments, out, store).ok());
    return std::string(AsString(out));
  }

  std::string blob_;
  PageIn page_;
  v1::OpenSpaceResponse space_;
};

TEST_F(CalibratedTest, PagesAreThoseOfTheLocalCodecAlsoAfterARestart) {
  Write(BlobPath(), blob_);
  StartServer();
  ASSERT_TRUE(Open("s", kRecipe, &space_).ok());
  const Sha256Digest hash = Sha256(AsBytes(blob_));
  EXPECT_THAT(space_.pipeline(), HasSubstr("blob=" + HexOf(std::span(hash).first(16))))
      << "the space keeps to its calibration";
  EXPECT_EQ(space_.recipe(), kRecipe);
  EXPECT_EQ(space_.levels(), 4u);
  ASSERT_EQ(client_->Put("s", {page_}).pages[0].status(), v1::STORED);
  EXPECT_EQ(Get().data, Local());

  // Another calibration that would fit is there too now: the space does not care.
  Write(config_.calibrations + "/other", *FitCorrelated(CorrelatedSpec(), 2, {}));
  Restart();
  const PageOut got = Get();
  EXPECT_EQ(got.data, Local());
  EXPECT_EQ(got.reply.recipe(), space_.pipeline());
  v1::OpenSpaceResponse again;
  EXPECT_TRUE(Open("s", kRecipe, &again).ok());
  EXPECT_FALSE(again.created());
  EXPECT_EQ(again.fingerprint(), space_.fingerprint());
}

TEST_F(CalibratedTest, OpeningWithoutTheBlobSaysWhatToDoAndFindsItLater) {
  Write(config_.calibrations + "/README", "no calibration");
  StartServer();
  const grpc::Status missing = Open("s", kRecipe, &space_);
  EXPECT_EQ(missing.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(missing.error_message(),
              AllOf(HasSubstr("kvstow codec calibrate"), HasSubstr(config_.calibrations)));
  EXPECT_EQ(Open("s", "kvstow-cal(run=2,blob=0123)", &space_).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  Write(BlobPath(), blob_);
  EXPECT_TRUE(Open("s", kRecipe, &space_).ok()) << "without a restart";
}

TEST_F(CalibratedTest, APageWhoseBlobIsMissingIsAMissUntilItIsBack) {
  Write(BlobPath(), blob_);
  StartServer();
  ASSERT_TRUE(Open("s", kRecipe, &space_).ok());
  ASSERT_EQ(client_->Put("s", {page_}).pages[0].status(), v1::STORED);
  std::filesystem::rename(BlobPath(), folder_ / "away");
  Restart();

  const PageOut miss = Get();
  EXPECT_EQ(miss.reply.status(), v1::MISS);
  EXPECT_THAT(miss.reply.message(), HasSubstr("needs calibration"));
  EXPECT_EQ(Metric("kvstow_missing_calibration_total"), 1);
  EXPECT_EQ(Get(v1::ENCODED).reply.status(), v1::HIT) << "who decodes it may have the blob";
  PageIn other = page_;
  other.key = "q";
  const auto put = client_->Put("s", {other});
  EXPECT_TRUE(put.status.ok());
  EXPECT_EQ(put.pages[0].status(), v1::REFUSED);
  EXPECT_EQ(Open("s", kRecipe, &space_).error_code(), grpc::StatusCode::FAILED_PRECONDITION);

  std::filesystem::rename(folder_ / "away", BlobPath());
  EXPECT_TRUE(Open("s", kRecipe, &space_).ok());
  EXPECT_EQ(Get().data, Local());
  EXPECT_EQ(client_->Put("s", {other}).pages[0].status(), v1::STORED);
}

TEST_F(CalibratedTest, AFolderThatIsNotThereIsRefusedAtStart) {
  config_.calibrations = (folder_ / "none").string();
  const auto server = Server::Start(config_, options_);
  EXPECT_EQ(server.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("calibrations: "));
}

// Whatever the umask says; one that an earlier server left open is closed.
TEST_F(CalibratedTest, AFolderOfItsOwnIsTheServersAlone) {
  using std::filesystem::perms;
  const std::string folder = DiskPath() + "/calibrations";
  const mode_t before = umask(0);
  for (const bool loose : {false, true}) {
    Calibrations calibrations("", DiskPath());
    EXPECT_TRUE(calibrations.Load().ok());
    EXPECT_TRUE(calibrations.Add(AsBytes(blob_)).ok());
    EXPECT_EQ(std::filesystem::status(folder).permissions(), perms::owner_all) << loose;
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      EXPECT_EQ(file.status().permissions(), perms(0600)) << file.path();
      std::filesystem::permissions(file.path(), perms(0644));
    }
    std::filesystem::permissions(folder, perms(0755));
  }
  umask(before);
}

}  // namespace
}  // namespace kvstow::testing
