// Starts the kernels of a policy, each op one launch, each budget a few.
//
// Thread-safe. The stream has come past the last of them before what they point at goes.
#ifndef KVSTOW_KERNELS_CUDA_SCORE_SCORE_LAUNCH_H_
#define KVSTOW_KERNELS_CUDA_SCORE_SCORE_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "kernels/device/score_plan.h"

namespace kvstow::gpu {

cudaError_t LaunchScores(const ScorePlan& plan, const ScoreLaunch& launch, cudaStream_t stream);
// After it, on the same stream.
cudaError_t LaunchChoosing(const ScorePlan& plan, const ScoreLaunch& launch,
                           std::span<const Fill> fills, cudaStream_t stream);

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_SCORE_SCORE_LAUNCH_H_
