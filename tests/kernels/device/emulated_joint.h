// The CPU does the GPU's work on calibrated pages: the kernels' code in two orders of threads, and
// a product that rounds as cuBLAS does, bf16 in and F32 sums.
#ifndef KVSTOW_TESTS_KERNELS_DEVICE_EMULATED_JOINT_H_
#define KVSTOW_TESTS_KERNELS_DEVICE_EMULATED_JOINT_H_

#include <cstddef>
#include <memory>

#include "kernels/device/joint_layout.h"
#include "tests/kernels/device/emulated_block.h"

namespace kvstow::testing {

inline constexpr size_t kHopperSharedBytes = 227 << 10;  // of a thread block of sm_90

// Its buffers are the host's.
std::unique_ptr<JointEngine> EmulatedJoint(ThreadOrder order,
                                           size_t shared_bytes = kHopperSharedBytes);

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_KERNELS_DEVICE_EMULATED_JOINT_H_
