// The GPU's kernels without a GPU: the very functions that nvcc compiles, run on the host for every
// tile, phase and thread. A fault that it finds is one on a GPU as well; docs/GPU.md says which
// faults it cannot find.
#ifndef KVSTOW_TESTS_KERNELS_DEVICE_EMULATED_CODEC_H_
#define KVSTOW_TESTS_KERNELS_DEVICE_EMULATED_CODEC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device/device.h"
#include "tests/conformance/device_factory.h"
#include "tests/kernels/device/emulated_block.h"

namespace kvstow::testing {

// The host, whose codecs and scorers are emulated.
std::unique_ptr<Device> EmulatedGpu(ThreadOrder order);

// Both orders, for suites.
inline constexpr DeviceFactory kEmulatedGpus[] = {
    {"forward",
     []() -> OpenedDevice { return std::shared_ptr<Device>(EmulatedGpu(ThreadOrder::kForward)); }},
    {"backward",
     []() -> OpenedDevice { return std::shared_ptr<Device>(EmulatedGpu(ThreadOrder::kBackward)); }},
};

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_KERNELS_DEVICE_EMULATED_CODEC_H_
