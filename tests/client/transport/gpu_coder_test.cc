// Pages on a GPU that go encoded to a server elsewhere: the GPU codes them, and nobody sees a
// difference.
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/client/transport/gpu_fixture.h"
#include "tests/kernels/device/host_as_gpu.h"

namespace kvstow {
namespace {

using ::testing::Each;

class GpuCoderTest : public GpuPagesTest {
 protected:
  static constexpr int kPages = 6;  // of ExpectWhatStreamsGive

  std::unique_ptr<Client> ConnectCoder(ClientOptions options = {.payload = Payload::kEncoded}) {
    options.gpu_shared_bytes = 0;  // the server is elsewhere
    options.gpu_device = device_;
    return ConnectGpu(options);
  }

  const std::shared_ptr<FailingGpu> device_ = std::make_shared<FailingGpu>();
};

TEST_F(GpuCoderTest, CodesWhatGoesEncoded) {
  Start();
  for (const size_t direct : {size_t{8}, size_t{0}}) {
    const auto client = ConnectCoder({.payload = Payload::kEncoded, .direct_connections = direct});
    for (const std::string recipe : {"int8", "rotated8", "kivi4", "quarot"}) {
      SCOPED_TRACE(recipe + (direct > 0 ? ", direct" : ", streams"));
      device_->encoded = device_->decoded = 0;
      gpu_->within = gpu_->to_host = gpu_->to_device = 0;
      Open(*client, recipe, recipe);
      ExpectWhatStreamsGive(*client, recipe);
      EXPECT_EQ(device_->encoded, kPages);
      EXPECT_EQ(device_->decoded, kPages);
      EXPECT_EQ(gpu_->within, 2 * kPages) << "to where the codec works, and from there";
      EXPECT_EQ(gpu_->to_host, kPages) << "for the digest";
      EXPECT_EQ(gpu_->to_device, 0) << "raw pages";
    }
  }
}

TEST_F(GpuCoderTest, LeavesToTheCpuWhatItCannotCode) {
  Start();
  const auto client = ConnectCoder();
  int n = 0;
  for (const char* recipe : {"raw", "lossless", "kvstow", "knorm(keep=0.6)|int8"}) {
    SCOPED_TRACE(recipe);
    const std::string space = absl::StrCat("s", ++n);
    Open(*client, space, recipe);
    ExpectWhatStreamsGive(*client, space);
  }
  EXPECT_EQ(device_->encoded + device_->decoded, 0);
}

TEST_F(GpuCoderTest, HasNoPartInPagesThatGoRaw) {
  Start();
  const auto client = ConnectCoder({.payload = Payload::kRaw});
  Open(*client, "s", "int8");
  ExpectWhatStreamsGive(*client, "s");
  EXPECT_EQ(device_->encoded + device_->decoded, 0);
}

TEST_F(GpuCoderTest, AFailureIsTheCpusWork) {
  Start();
  const auto client = ConnectCoder();
  Open(*client, "s", "int8");
  device_->fails = true;
  ExpectWhatStreamsGive(*client, "s");
  device_->fails = false;
  gpu_->cannot_copy = true;  // within the GPU
  ExpectWhatStreamsGive(*client, "s");
  EXPECT_EQ(device_->encoded, 0);
}

TEST_F(GpuCoderTest, PartsAndLevelsAreDecodedAsElsewhere) {
  Start();
  const auto client = ConnectCoder(), streams = Connect({.shared_bytes = 0});
  const Prompt prompt(SmallSpec(), 5 * 64, 1);
  Open(*client, "s", "rotated8");
  OnGpu on_gpu(prompt);
  ASSERT_THAT(OutcomesOf(client->Put("s", on_gpu.puts).get()), Each(PageOutcome::kStored));
  Fetch streamed(prompt);
  for (auto* gets : {&on_gpu.gets, &streamed.gets}) {
    (*gets)[0].max_levels = 1;
    (*gets)[1].first_layer = 1;
    (*gets)[2].layer_count = 1;
    (*gets)[3].first_token = 30;
  }
  const auto a = streams->Get("s", 0, streamed.gets).get();
  const auto b = client->Get("s", 0, on_gpu.gets).get();
  for (size_t p = 0; p < a.size(); ++p) {
    SCOPED_TRACE(p);
    ASSERT_EQ(b[p].outcome, PageOutcome::kHit) << b[p].message;
    EXPECT_EQ(b[p].bytes, a[p].bytes);
    EXPECT_EQ(b[p].levels, a[p].levels);
    const auto bytes = static_cast<std::ptrdiff_t>(a[p].bytes);
    EXPECT_TRUE(std::equal(on_gpu.room[p].begin(), on_gpu.room[p].begin() + bytes,
                           streamed.buffers[p].begin()));
  }
  EXPECT_EQ(device_->decoded, 2) << "the whole pages, one of them to its first level";
}

TEST_F(GpuCoderTest, APageThatCannotBeCodedIsKeptExactly) {
  Start();
  const auto client = ConnectCoder();
  Prompt prompt(SmallSpec(), 2 * 64, 1);
  const uint16_t nan = 0x7e00;
  std::memcpy(prompt.pages[0].data(), &nan, sizeof(nan));
  Open(*client, "s", "int8");
  OnGpu on_gpu(prompt);
  const auto put = client->Put("s", on_gpu.puts).get();
  ASSERT_THAT(OutcomesOf(put), Each(PageOutcome::kStored));
  EXPECT_TRUE(put[0].fell_back);
  EXPECT_FALSE(put[1].fell_back);
  const auto got = client->Get("s", 0, on_gpu.gets).get();
  EXPECT_TRUE(got[0].exact);
  EXPECT_EQ(on_gpu.room[0], prompt.pages[0]);
  EXPECT_EQ(device_->encoded, 1);
}

}  // namespace
}  // namespace kvstow
