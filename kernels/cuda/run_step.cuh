// Makes kernels of the steps. Only nvcc compiles this file; the host compiles the others too.
#ifndef KVSTOW_KERNELS_CUDA_RUN_STEP_CUH_
#define KVSTOW_KERNELS_CUDA_RUN_STEP_CUH_

#include <cstdint>

#include "kernels/device/slab_layout.h"

namespace kvstow::gpu {

// A phase is a call of each thread and a barrier.
struct RunPhase {
  template <typename Phase>
  __device__ void operator()(const Phase& phase) const {
    phase(threadIdx.x);
    __syncthreads();
  }
};

template <typename Launch, typename Step>
__global__ void __launch_bounds__(kThreads)
    RunStep(const __grid_constant__ Launch launch, const __grid_constant__ Step step) {
  extern __shared__ __align__(16) uint8_t shared[];
  step.Code(launch, blockIdx.y, blockIdx.x, shared, RunPhase());
}

// Starts a step's kernel: a grid of its blocks by pages.
template <typename Launch>
struct StartKernel {
  const Launch& launch;
  cudaStream_t stream;

  template <typename Step>
  void operator()(const Step& step) const {
    const dim3 grid(step.Blocks(launch), launch.pages);
    RunStep<<<grid, kThreads, step.SharedBytes(launch), stream>>>(launch, step);
  }
};

// Starts one of a step that may need more shared memory than a kernel has without asking. The limit
// is the kernel's, for all threads of the process. So every call asks for all that the GPU has:
// else a call that needs little would lower the limit just before the launch of one that needs
// more.
template <typename Launch, typename Step>
cudaError_t StartWide(const Launch& launch, cudaStream_t stream) {
  int gpu = 0, most = 0;
  if (const auto e = cudaGetDevice(&gpu); e != cudaSuccess) return e;
  if (const auto e = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, gpu);
      e != cudaSuccess) {
    return e;
  }
  const cudaError_t code = cudaFuncSetAttribute(RunStep<Launch, Step>,
                                                cudaFuncAttributeMaxDynamicSharedMemorySize, most);
  if (code != cudaSuccess) return code;
  StartKernel{launch, stream}(Step());
  return cudaGetLastError();
}

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_RUN_STEP_CUH_
