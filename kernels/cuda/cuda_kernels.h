// What DeviceKernels of a GPU makes. A call holds one of the context's lanes, so as many calls run
// at once as there are lanes. Scratch memory comes from the context's pool.
#ifndef KVSTOW_KERNELS_CUDA_CUDA_KERNELS_H_
#define KVSTOW_KERNELS_CUDA_CUDA_KERNELS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_scratch.h"
#include "kernels/device/device_kernels.h"

namespace kvstow {

struct SharedCublas;  // joint/cublas.h

// Pages of a call go into launches of up to 64. A launch codes its pages in one pass over memory.
// Gains take scratch memory of 6 % of the raw bytes of a launch.
absl::StatusOr<std::unique_ptr<DeviceCodec>> MakeCudaCodec(const Recipe& recipe, const KvSpec& spec,
                                                           const CudaContext& context);

// Pages of a call go into batches of up to 64 of one length; each op of the policy is one launch
// over all of them. A batch takes scratch memory: 4 bytes for each score that the policy pushes and
// 1 for what it keeps, times the tokens of all heads and layers.
//
// Nobody has measured its speed. One thread does what is sequential in the CPU's sums (the mean of
// a head's tokens, LagKV's total), so that bits are the same. Scope `page` chooses with one block a
// page.
absl::StatusOr<std::unique_ptr<DeviceScorer>> MakeCudaScorer(const Recipe& recipe,
                                                             const KvSpec& spec,
                                                             const CudaContext& context);

// Kernels around a product of cuBLAS, and those of the plane coder's streams. Products of one call
// at a time work on the GPU, because all engines of a device share a handle's workspace; all else
// of several calls goes side by side. Lanes need no pinned memory. Fails with UNIMPLEMENTED when
// the machine has no cuBLAS.
absl::StatusOr<std::unique_ptr<JointEngine>> MakeCudaJointEngine(const CudaContext& context,
                                                                 SharedCublas& cublas);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CUDA_CUDA_KERNELS_H_
