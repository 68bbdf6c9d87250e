// The CPU does the GPU's work on calibrated pages: the kernels' code in two orders of threads, and
// a product that rounds as cuBLAS does, bf16 in and F32 sums.
#ifndef KVSTOW_TESTS_KERNELS_DEVICE_EMULATED_JOINT_H_
#define KVSTOW_TESTS_KERNELS_DEVICE_EMULATED_JOINT_H_

#include <memory>

#include "kernels/device/joint_layout.h"
#include "tests/kernels/device/emulated_block.h"

namespace kvstow::testing {

// Its buffers are the host's.
std::unique_ptr<JointEngine> EmulatedJoint(ThreadOrder order);

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_KERNELS_DEVICE_EMULATED_JOINT_H_
