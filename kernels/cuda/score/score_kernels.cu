// The kernels of policies: a grid of a step's blocks by pages. All that they do is in
// score_steps.cuh.
//
// Nothing is special to an architecture: sm_80 and up. A block takes at most 34 KiB of shared
// memory.
#include "kernels/cuda/run_step.cuh"
#include "kernels/cuda/score/score_launch.h"
#include "kernels/cuda/score/score_steps.cuh"

namespace kvstow::gpu {

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
