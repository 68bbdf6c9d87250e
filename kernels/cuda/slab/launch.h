// Starts the kernels: raw pointers and an explicit stream in, the runtime's code out.
//
// Thread-safe. A launch is over when the stream has come past it; what it points at stays until
// then, the Launch itself is copied.
#ifndef KVSTOW_KERNELS_CUDA_SLAB_LAUNCH_H_
#define KVSTOW_KERNELS_CUDA_SLAB_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "kernels/device/slab_layout.h"

namespace kvstow::gpu {

// launch.refused, and partials and totals unless null, must have room. `refused` must be zero.
cudaError_t LaunchEncode(const Launch& launch, cudaStream_t stream);
cudaError_t LaunchDecode(const Launch& launch, cudaStream_t stream);

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_SLAB_LAUNCH_H_
