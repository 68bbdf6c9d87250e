// The device codec conformance suite on the CPU, on the GPU's code run by the CPU, and on a GPU.
#include "tests/conformance/device_codec_conformance.h"
#include "tests/kernels/device/emulated_codec.h"

namespace kvstow::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Host, DeviceCodecConformance,
                         ::testing::Values(DeviceFactory{"cpu", OpenHost}));
INSTANTIATE_TEST_SUITE_P(Emulated, DeviceCodecConformance, ::testing::ValuesIn(kEmulatedGpus));
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceCodecConformance,
                         ::testing::Values(DeviceFactory{"gpu0", OpenFirstGpu}));

}  // namespace
}  // namespace kvstow::testing
