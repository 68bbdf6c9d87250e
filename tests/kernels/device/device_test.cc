#include "kernels/device/device.h"

#include <gtest/gtest.h>

#include "tests/conformance/device_conformance.h"

namespace kvstow {
namespace {

INSTANTIATE_TEST_SUITE_P(Host, DeviceConformance, testing::Values(DeviceFactory{"cpu", OpenHost}));
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceConformance,
                         testing::Values(DeviceFactory{"gpu0", OpenFirstGpu}));

TEST(HostDeviceTest, KeepsAReferenceAndCopiesNothing) {
  const SharedBytes bytes = SharedBytes::CopyOf(PatternBytes(1 << 16, 1));
  const auto buffer = HostDevice().Store(bytes);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  const auto loaded = HostDevice().Load(*buffer);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->data(), bytes.data());
}

TEST(CudaDeviceTest, ADeviceThatIsNotThereIsUnavailableAndNamed) {
  for (const int ordinal : {-1, 4096}) {
    const auto device = OpenCudaDevice(ordinal);
    ASSERT_EQ(device.status().code(), absl::StatusCode::kUnavailable) << device.status();
    EXPECT_THAT(std::string(device.status().message()),
                testing::StartsWith("cuda:" + std::to_string(ordinal) + ": "));
  }
}

}  // namespace
}  // namespace kvstow
