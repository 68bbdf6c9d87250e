// The codec of calibrated pages on the GPU's code run by the CPU, and on a GPU.
#include "base/bytes.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/device/device_joint_codec.h"
#include "kernels/device/device_kernels.h"
#include "tests/conformance/device_asking_conformance.h"
#include "tests/conformance/device_joint_conformance.h"
#include "tests/conformance/device_plane_conformance.h"
#include "tests/conformance/device_vocabulary_conformance.h"
#include "tests/kernels/correlated_pages.h"
#include "tests/kernels/device/emulated_codec.h"
#include "tests/kernels/device/emulated_joint.h"
#include "tests/kernels/device/host_as_gpu.h"

namespace kvstow::testing {
namespace {

OpenedDevice OpenGpuWithCublas() {
  auto device = OpenFirstGpu();
  if (!device.ok()) return device;
  // Without it there is nothing to test.
  if (auto engine = (*device)->kernels().NewJointEngine(); absl::IsUnimplemented(engine.status())) {
    return absl::UnavailableError(engine.status().message());
  }
  return device;
}

INSTANTIATE_TEST_SUITE_P(Emulated, DeviceJointConformance, ::testing::ValuesIn(kEmulatedGpus));
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceJointConformance,
                         ::testing::Values(DeviceFactory{"gpu0", OpenGpuWithCublas}));

INSTANTIATE_TEST_SUITE_P(Emulated, DeviceAskingConformance, ::testing::ValuesIn(kEmulatedGpus));
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceAskingConformance,
                         ::testing::Values(DeviceFactory{"gpu0", OpenGpuWithCublas}));

INSTANTIATE_TEST_SUITE_P(Emulated, DeviceVocabularyConformance, ::testing::ValuesIn(kEmulatedGpus));
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceVocabularyConformance,
                         ::testing::Values(DeviceFactory{"gpu0", OpenGpuWithCublas}));

INSTANTIATE_TEST_SUITE_P(Emulated, DevicePlaneConformance, ::testing::ValuesIn(kEmulatedGpus));
INSTANTIATE_TEST_SUITE_P(Cuda, DevicePlaneConformance,
                         ::testing::Values(DeviceFactory{"gpu0", OpenGpuWithCublas}));

TEST(DeviceJointTest, TheHostLeavesThemToItsCodec) {
  const absl::Status status = HostDevice().kernels().NewJointEngine().status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
}

// A GPU whose thread blocks have so much shared memory.
class GpuWithShared final : public HostAsGpu, public DeviceKernels {
 public:
  explicit GpuWithShared(size_t bytes) : bytes_(bytes) {}
  DeviceKernels& kernels() override { return *this; }
  absl::StatusOr<std::unique_ptr<JointEngine>> NewJointEngine() override {
    return EmulatedJoint(ThreadOrder::kForward, bytes_);
  }

 private:
  const size_t bytes_;
};

TEST(DeviceJointTest, StreamsThatAThreadBlockHasNoRoomForAreTheCpus) {
  constexpr size_t kAda = 99 << 10;  // sm_86 and sm_89
  EXPECT_EQ(gpu::MostStreamTokens(4, kHopperSharedBytes), 512u);
  EXPECT_EQ(gpu::MostStreamTokens(8, kHopperSharedBytes), 256u);
  EXPECT_EQ(gpu::MostStreamTokens(3, kAda), 512u);
  EXPECT_EQ(gpu::MostStreamTokens(4, kAda), 480u);
  EXPECT_EQ(gpu::MostStreamTokens(8, kAda), 256u);
  EXPECT_EQ(gpu::MostStreamTokens(1, 0), 0u);

  const KvSpec spec = CorrelatedSpec();
  CalibrationStore calibrations;
  const auto blob = FitCorrelated(spec, 2);
  ASSERT_TRUE(blob.ok()) << blob.status();
  ASSERT_TRUE(calibrations.Add(AsBytes(*blob)).ok());
  const size_t enough = gpu::PlaneSharedBytes(3, spec.page_tokens);
  const auto make = [&](size_t bytes, const char* recipe) {
    GpuWithShared gpu(bytes);
    return MakeDeviceJointCodec(gpu, *ParseRecipe(recipe), spec, calibrations).status();
  };
  EXPECT_TRUE(make(enough, "kvstow-cal(run=2,levels=3)").ok());
  const absl::Status refused = make(enough - 1, "kvstow-cal(run=2,levels=3)");
  EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
  EXPECT_TRUE(make(enough - 1, "kvstow-cal(run=2,levels=3,stream=64)").ok());
}

}  // namespace
}  // namespace kvstow::testing
