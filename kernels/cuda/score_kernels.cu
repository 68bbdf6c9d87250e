// The kernels of policies: a grid of a step's blocks by pages. All that they do is in
// score_steps.cuh; here a phase becomes a call of each thread and a barrier.
//
// Nothing is special to an architecture: sm_80 and up. A block takes at most 34 KiB of shared
// memory.
#include "kernels/cuda/score_launch.h"
#include "kernels/cuda/score_steps.cuh"

namespace kvstow::gpu {
namespace {

struct RunPhase {
  template <typename Phase>
  __device__ void operator()(const Phase& phase) const {
    phase(threadIdx.x);
    __syncthreads();
  }
};

template <typename Step>
__global__ void __launch_bounds__(kThreads)
    RunStep(const __grid_constant__ ScoreLaunch launch, const __grid_constant__ Step step) {
  extern __shared__ __align__(16) uint8_t shared[];
  step.Code(launch, blockIdx.y, blockIdx.x, shared, RunPhase());
}

struct StartKernel {
  const ScoreLaunch& launch;
  cudaStream_t stream;

  template <typename Step>
  void operator()(const Step& step) const {
    const dim3 grid(step.Blocks(launch.layout), launch.pages);
    RunStep<<<grid, kThreads, step.SharedBytes(launch.layout), stream>>>(launch, step);
  }
};

}  // namespace

cudaError_t LaunchScores(const ScorePlan& plan, const ScoreLaunch& launch, cudaStream_t stream) {
  StartScores(plan, StartKernel{launch, stream});
  return cudaGetLastError();
}

cudaError_t LaunchChoosing(const ScorePlan& plan, const ScoreLaunch& launch,
                           std::span<const Fill> fills, cudaStream_t stream) {
  StartChoosing(plan, launch.layout, fills, StartKernel{launch, stream});
  return cudaGetLastError();
}

}  // namespace kvstow::gpu
