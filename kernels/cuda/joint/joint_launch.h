// Starts the kernels of calibrated pages.
//
// Thread-safe. The stream has come past the last of them before what they point at goes.
#ifndef KVSTOW_KERNELS_CUDA_JOINT_JOINT_LAUNCH_H_
#define KVSTOW_KERNELS_CUDA_JOINT_JOINT_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "kernels/device/joint_layout.h"

namespace kvstow::gpu {

cudaError_t LaunchTokens(const TokenLaunch& launch, cudaStream_t stream);
cudaError_t LaunchAsking(const AskLaunch& launch, cudaStream_t stream);
// The product comes in between.
cudaError_t LaunchBeforeEncoding(const JointLaunch& launch, cudaStream_t stream);
cudaError_t LaunchAfterEncoding(const JointLaunch& launch, cudaStream_t stream);
// After the product.
cudaError_t LaunchAfterDecoding(const JointLaunch& launch, cudaStream_t stream);
// Streams: before all of decoding, and after all of encoding.
cudaError_t LaunchDecodePlanes(const PlaneDecodeLaunch& launch, cudaStream_t stream);
cudaError_t LaunchEncodePlanes(const PlaneEncodeLaunch& launch, cudaStream_t stream);
cudaError_t LaunchMoveWords(const WordsLaunch& launch, cudaStream_t stream);

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_JOINT_JOINT_LAUNCH_H_
