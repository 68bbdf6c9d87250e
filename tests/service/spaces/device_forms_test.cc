// A server with a GPU, which the host plays: cold forms of calibrated recipes come from it, gets
// are decoded by it, and nobody can tell when it fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "kernels/device/device_joint_codec.h"
#include "kernels/device/host_sharing.h"
#include "proto/wire/spec.h"
#include "tests/kernels/correlated_pages.h"
#include "tests/service/server_fixture.h"
#include "tests/service/unsteady_gpu.h"
#include "tests/service/wire_client.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kRecipe[] = "hot=int8,cold=kvstow-cal(run=3,step=0.5)";
constexpr uint32_t kTokens = 128;

// The GPU has its hot form too.
KvSpec Spec() { return CorrelatedSpec(3, 16, 16); }

class DeviceFormsTest : public ServerTest {
 protected:
  ~DeviceFormsTest() override {  // before the GPU
    client_.reset();
    server_.reset();
  }
  void SetUp() override {
    config_.calibrations = (folder_ / "calibrations").string();
    std::filesystem::create_directory(config_.calibrations);
    const auto blob = FitCorrelated(Spec(), 3);
    ASSERT_TRUE(blob.ok()) << blob.status();
    std::ofstream(BlobPath(), std::ios::binary) << *blob;
    config_.disk_path = DiskPath();
    config_.disk_bytes = 64 << 20;
    // Room for about ten hot pages of 26 KiB.
    config_.host_bytes = 260 << 10;
    config_.low_watermark = 0.5;
    config_.high_watermark = 0.6;
    options_.gpu = &gpu_;
    options_.clock = &clock_;
    options_.device_coder = {.least_page_bytes = 0, .clock = &clock_};
  }
  std::string BlobPath() const { return config_.calibrations + "/blob"; }
  grpc::Status Open(const std::string& space, const std::string& recipe = kRecipe) {
    v1::OpenSpaceRequest request;
    v1::OpenSpaceResponse out;
    request.set_space(space);
    request.set_recipe(recipe);
    KvSpec spec = Spec();
    spec.revision = "1";
    ToProto(spec, *request.mutable_spec());
    return client_->kv().OpenSpace(client_->Context().get(), request, &out);
  }
  static PageIn Page(uint32_t i) {
    const auto raw = CorrelatedPage(Spec(), kTokens, i, kTokens * i);
    return {.key = absl::StrCat("p", i),
            .raw = std::string(AsString(raw)),
            .tokens = kTokens,
            .first_position = kTokens * i};
  }
  void PutPages(const std::string& space, uint32_t first, uint32_t count) {
    for (uint32_t i = first; i < first + count; ++i) {
      const v1::PutResult put = client_->Put(space, {Page(i)}).pages.at(0);
      ASSERT_EQ(put.status(), v1::STORED) << put.message();
    }
  }
  PageOut Get(const std::string& space, uint32_t i) {
    const auto got = client_->Get(space, {Ask(absl::StrCat("p", i))});
    return got.pages.size() == 1 ? got.pages[0] : PageOut{};
  }
  // Everything that was put is there, about as good as the reply says. Returns how many are cold.
  int ExpectAllThere(const std::string& space, uint32_t first, uint32_t count) {
    int cold = 0;
    for (uint32_t i = first; i < first + count; ++i) {
      SCOPED_TRACE(absl::StrCat(space, ", page ", i));
      const PageOut got = Get(space, i);
      EXPECT_EQ(got.reply.status(), v1::HIT) << got.reply.message();
      if (got.reply.status() != v1::HIT) continue;
      const double error = RelativeError(Spec().dtype, AsBytes(Page(i).raw), AsBytes(got.data));
      EXPECT_LT(error, 1.5 * got.reply.estimated_error() + kJointDeviceError);
      if (got.reply.recipe().find("joint(") == 0) ++cold;
    }
    return cold;
  }
  double Pages(const char* way, const char* coder) const {
    return Metric(
        absl::StrCat("kvstow_device_pages_total{coder=\"", coder, "\",way=\"", way, "\"}"));
  }

  UnsteadyGpu gpu_;
};

TEST_F(DeviceFormsTest, ColdFormsAreMadeAndDecodedByTheGpu) {
  StartServer();
  ASSERT_TRUE(Open("s").ok());
  EXPECT_EQ(Pages("encode", "gpu"), 0) << "it is there from the start";
  PutPages("s", 1, 20);
  const int cold = ExpectAllThere("s", 1, 20);
  EXPECT_GT(cold, 0);
  EXPECT_GE(Pages("encode", "gpu"), cold);
  EXPECT_EQ(Pages("encode", "cpu"), 0);
  EXPECT_GE(Pages("decode", "gpu"), cold);
  EXPECT_EQ(Pages("decode", "cpu"), 0);
  EXPECT_GT(Metric("kvstow_device_codec_bytes"), 0);
  EXPECT_GT(Metric("kvstow_store_cooled_pages_total"), 0);
}

TEST_F(DeviceFormsTest, PartsOfPagesAreTheCpus) {
  StartServer();
  ASSERT_TRUE(Open("s").ok());
  PutPages("s", 1, 20);
  uint32_t cold = 1;
  while (cold <= 20 && Get("s", cold).reply.recipe().find("joint(") != 0) ++cold;
  ASSERT_LE(cold, 20u);
  const std::string whole = Get("s", cold).data;
  v1::GetPage ask = Ask(absl::StrCat("p", cold));
  ask.set_first_layer(1);
  ask.set_layer_count(1);
  const PageOut part = client_->Get("s", {ask}).pages.at(0);
  ASSERT_EQ(part.reply.status(), v1::HIT);
  const size_t layer = LayerBytes(Spec(), kTokens);
  EXPECT_LT(RelativeError(Spec().dtype, AsBytes(whole).subspan(layer, layer), AsBytes(part.data)),
            kJointDeviceError);
  EXPECT_EQ(Pages("decode", "cpu"), 1);
}

TEST_F(DeviceFormsTest, AFailingGpuCostsNoPage) {
  StartServer();
  ASSERT_TRUE(Open("s").ok());
  PutPages("s", 1, 12);
  for (const bool full : {true, false}) {
    (full ? gpu_.is_full : gpu_.is_broken) = true;
    ExpectAllThere("s", 1, 12);
    PutPages("s", full ? 13 : 25, 12);
    (full ? gpu_.is_full : gpu_.is_broken) = false;
    clock_.Advance(options_.device_coder.rest);
  }
  const int cold = ExpectAllThere("s", 1, 36);
  EXPECT_GT(cold, 0);
  EXPECT_GT(Pages("encode", "cpu"), 0);
  EXPECT_GT(Pages("decode", "cpu"), 0);
  EXPECT_EQ(Metric("kvstow_corrupt_pages_total"), 0);
}

TEST_F(DeviceFormsTest, SpacesOfOtherRecipesAreAsWithoutAGpu) {
  StartServer();
  ASSERT_TRUE(Open("s").ok());
  ASSERT_TRUE(Open("planes", "hot=int8,cold=kvstow").ok());
  PutPages("s", 1, 8);
  PutPages("planes", 1, 12);
  PutPages("s", 9, 8);
  for (const auto& [space, count] : {std::pair{"s", 16u}, {"planes", 12u}}) {
    ExpectAllThere(space, 1, count);
  }
  EXPECT_EQ(Pages("encode", "cpu"), 0) << "they count nowhere";
}

TEST_F(DeviceFormsTest, APageWhoseCalibrationIsMissingIsAMiss) {
  StartServer();
  ASSERT_TRUE(Open("s").ok());
  PutPages("s", 1, 20);
  ASSERT_GT(ExpectAllThere("s", 1, 20), 0);
  StopServer();
  std::filesystem::remove(BlobPath());
  StartServer();
  int missing = 0;
  for (uint32_t i = 1; i <= 20; ++i) {
    const PageOut got = Get("s", i);
    if (got.reply.status() == v1::HIT) continue;
    ++missing;
    EXPECT_EQ(got.reply.status(), v1::MISS) << got.reply.message();
    EXPECT_THAT(got.reply.message(), HasSubstr("needs calibration"));
  }
  EXPECT_GT(missing, 0);
  EXPECT_EQ(Pages("decode", "gpu"), 0);
}

TEST_F(DeviceFormsTest, ManyClientsAtOnce) {
  StartServer();
  ASSERT_TRUE(Open("a").ok());
  ASSERT_TRUE(Open("b").ok());
  std::vector<std::thread> threads;
  for (const char* space : {"a", "b", "a", "b"}) {
    threads.emplace_back([&, space, first = static_cast<uint32_t>(1 + 10 * threads.size())] {
      WireClient client(server_->address());
      for (uint32_t i = first; i < first + 10; ++i) {
        ASSERT_EQ(client.Put(space, {Page(i)}).pages.at(0).status(), v1::STORED);
        const auto got = client.Get(space, {Ask(absl::StrCat("p", i))});
        ASSERT_EQ(got.pages.at(0).reply.status(), v1::HIT) << got.pages[0].reply.message();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint32_t k = 0; k < 4; ++k) ExpectAllThere(k % 2 == 0 ? "a" : "b", 1 + 10 * k, 10);
  EXPECT_GT(Pages("encode", "gpu"), 0);
  EXPECT_TRUE(server_->store().residency().CheckInvariants().ok());
}

}  // namespace
}  // namespace kvstow::testing
