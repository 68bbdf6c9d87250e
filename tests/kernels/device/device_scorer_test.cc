// The device scorer conformance suite on the CPU, on the GPU's code run by the CPU, and on a GPU.
#include "tests/conformance/device_scorer_conformance.h"
#include "tests/kernels/device/emulated_codec.h"

namespace kvstow::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Host, DeviceScorerConformance,
                         ::testing::Values(DeviceFactory{"cpu", OpenHost}));
INSTANTIATE_TEST_SUITE_P(Emulated, DeviceScorerConformance, ::testing::ValuesIn(kEmulatedGpus));
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceScorerConformance,
                         ::testing::Values(DeviceFactory{"gpu0", OpenFirstGpu}));

}  // namespace
}  // namespace kvstow::testing
