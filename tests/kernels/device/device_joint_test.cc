// The codec of calibrated pages on the GPU's code run by the CPU, and on a GPU.
#include "kernels/device/device_kernels.h"
#include "tests/conformance/device_asking_conformance.h"
#include "tests/conformance/device_joint_conformance.h"
#include "tests/conformance/device_plane_conformance.h"
#include "tests/conformance/device_vocabulary_conformance.h"
#include "tests/kernels/device/emulated_codec.h"

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

}  // namespace
}  // namespace kvstow::testing
