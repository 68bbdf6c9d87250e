// The codec of calibrated pages on the GPU's code run by the CPU, and on a GPU.
#include "kernels/cuda/joint_layout.h"
#include "tests/conformance/device_joint_conformance.h"
#include "tests/kernels/emulated_codec.h"

namespace kvstow::testing {
namespace {

using Opened = absl::StatusOr<std::shared_ptr<Device>>;

Opened OpenEmulated() { return std::shared_ptr<Device>(EmulatedGpu(ThreadOrder::kForward)); }
Opened OpenEmulatedBackward() {
  return std::shared_ptr<Device>(EmulatedGpu(ThreadOrder::kBackward));
}

Opened OpenFirstGpu() {
  auto device = OpenCudaDevice(0);
  if (!device.ok()) return device.status();
  // Without cuBLAS there is nothing to test.
  if (auto engine = (*device)->NewJointEngine(); absl::IsUnimplemented(engine.status())) {
    return absl::UnavailableError(engine.status().message());
  }
  return std::shared_ptr<Device>(*std::move(device));
}

INSTANTIATE_TEST_SUITE_P(Emulated, DeviceJointConformance,
                         ::testing::Values(DeviceFactory{"forward", OpenEmulated},
                                           DeviceFactory{"backward", OpenEmulatedBackward}));
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceJointConformance,
                         ::testing::Values(DeviceFactory{"gpu0", OpenFirstGpu}));

TEST(DeviceJointTest, TheHostLeavesThemToItsCodec) {
  const absl::Status status = HostDevice().NewJointEngine().status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
}

}  // namespace
}  // namespace kvstow::testing
