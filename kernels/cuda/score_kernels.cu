// The kernels of policies: a grid of a step's blocks by pages. All that they do is in
// score_steps.cuh.
//
// Nothing is special to an architecture: sm_80 and up. A block takes at most 34 KiB of shared
// memory.
#include "kernels/cuda/run_step.cuh"
#include "kernels/cuda/score_launch.h"
#include "kernels/cuda/score_steps.cuh"

namespace kvstow::gpu {
namespace {

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
