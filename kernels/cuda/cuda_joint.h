// The GPU's JointEngine: kernels around a product of cuBLAS. One launch at a time works on the GPU,
// because launches share a handle's workspace.
#ifndef KVSTOW_KERNELS_CUDA_CUDA_JOINT_H_
#define KVSTOW_KERNELS_CUDA_CUDA_JOINT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_scratch.h"
#include "kernels/device/joint_layout.h"

namespace kvstow {

// Fails with UNIMPLEMENTED when the machine has no cuBLAS.
absl::StatusOr<std::unique_ptr<JointEngine>> MakeCudaJointEngine(const CudaContext& context);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CUDA_CUDA_JOINT_H_
