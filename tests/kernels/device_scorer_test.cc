// The device scorer conformance suite on the CPU, on the GPU's code run by the CPU, and on a GPU.
#include "tests/conformance/device_scorer_conformance.h"
#include "tests/kernels/emulated_codec.h"

namespace kvstow::testing {
namespace {

using Opened = absl::StatusOr<std::shared_ptr<Device>>;

Opened OpenHost() {
  return std::shared_ptr<Device>(&HostDevice(), [](Device*) {});
}

Opened OpenEmulated() { return std::shared_ptr<Device>(EmulatedGpu(ThreadOrder::kForward)); }
Opened OpenEmulatedBackward() {
  return std::shared_ptr<Device>(EmulatedGpu(ThreadOrder::kBackward));
}

Opened OpenFirstGpu() {
  auto device = OpenCudaDevice(0);
  if (!device.ok()) return device.status();
  return std::shared_ptr<Device>(*std::move(device));
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceScorerConformance,
                         ::testing::Values(DeviceFactory{"cpu", OpenHost}));
INSTANTIATE_TEST_SUITE_P(Emulated, DeviceScorerConformance,
                         ::testing::Values(DeviceFactory{"forward", OpenEmulated},
                                           DeviceFactory{"backward", OpenEmulatedBackward}));
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceScorerConformance,
                         ::testing::Values(DeviceFactory{"gpu0", OpenFirstGpu}));

}  // namespace
}  // namespace kvstow::testing
