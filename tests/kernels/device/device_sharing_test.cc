#include "kernels/device/device_sharing.h"

#include "kernels/device/host_sharing.h"
#include "tests/conformance/device_sharing_conformance.h"

namespace kvstow::testing {
namespace {

absl::StatusOr<OpenedSharing> OpenHost() {
  return OpenedSharing{.device = std::shared_ptr<Device>(&HostDevice(), [](Device*) {}),
                       .sharing = MakeHostSharing("the host, 16 b. ")};
}

absl::StatusOr<OpenedSharing> OpenFirstGpu() {
  auto device = OpenCudaDevice(0);
  if (!device.ok()) return device.status();
  auto sharing = OpenCudaSharing(0);
  if (!sharing.ok()) return sharing.status();
  return OpenedSharing{.device = *std::move(device), .sharing = *std::move(sharing)};
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceSharingConformance,
                         ::testing::Values(SharingFactory{"cpu", OpenHost}));
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceSharingConformance,
                         ::testing::Values(SharingFactory{"gpu0", OpenFirstGpu}));

TEST(CudaSharingTest, AGpuThatIsNotThereIsUnavailableAndNamed) {
  for (const int ordinal : {-1, 4096}) {
    const auto sharing = OpenCudaSharing(ordinal);
    ASSERT_TRUE(absl::IsUnavailable(sharing.status())) << sharing.status();
    EXPECT_THAT(std::string(sharing.status().message()),
                ::testing::StartsWith("cuda:" + std::to_string(ordinal) + ": "));
  }
}

TEST(HostSharingTest, AddressesAreNotTheHosts) {
  std::vector<uint8_t> bytes = {1, 2, 3};
  const std::span<uint8_t> far = AsDeviceBytes(bytes);
  EXPECT_NE(far.data(), bytes.data());
  EXPECT_EQ(AsDeviceBytes(far).data(), bytes.data());
  const auto sharing = MakeHostSharing("0123456789abcdef");
  std::vector<uint8_t> came(3);
  ASSERT_TRUE(sharing->ToHost(far, came.data()).ok());
  EXPECT_EQ(came, bytes);
}

TEST(HostSharingTest, EventsPassWhenTheyAreSaidTo) {
  const auto sharing = MakeHostSharing("0123456789abcdef");
  HostEvent event = false;
  EXPECT_FALSE(*sharing->Passed(&event));
  event = true;
  EXPECT_TRUE(*sharing->Passed(&event));
}

}  // namespace
}  // namespace kvstow::testing
