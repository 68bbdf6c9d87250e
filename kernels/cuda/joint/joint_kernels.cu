// The kernels of calibrated pages: a grid of a step's blocks by pages. All that they do is in
// find_tokens.cuh, foretold_attention.cuh, joint_steps.cuh and joint_quantize.cuh.
//
// Nothing is special to an architecture: sm_80 and up.
#include "kernels/cuda/joint/find_tokens.cuh"
#include "kernels/cuda/joint/foretold_attention.cuh"
#include "kernels/cuda/joint/joint_launch.h"
#include "kernels/cuda/joint/joint_quantize.cuh"
#include "kernels/cuda/joint/page_tables.cuh"
#include "kernels/cuda/joint/plane_decode.cuh"
#include "kernels/cuda/joint/plane_encode.cuh"
#include "kernels/cuda/joint/plane_order.cuh"
#include "kernels/cuda/run_step.cuh"

namespace kvstow::gpu {

cudaError_t LaunchAsking(const AskLaunch& launch, cudaStream_t stream) {
  Ask(launch, StartKernel{launch, stream});
  return cudaGetLastError();
}

cudaError_t LaunchTokens(const TokenLaunch& launch, cudaStream_t stream) {
  LookAtTokens(launch, StartKernel{launch, stream});
  return cudaGetLastError();
}

cudaError_t LaunchBeforeEncoding(const JointLaunch& launch, cudaStream_t stream) {
  BeforeEncoding(launch, StartKernel{launch, stream});
  return cudaGetLastError();
}

cudaError_t LaunchAfterEncoding(const JointLaunch& launch, cudaStream_t stream) {
  AfterEncoding(launch, StartKernel{launch, stream});
  return cudaGetLastError();
}

cudaError_t LaunchAfterDecoding(const JointLaunch& launch, cudaStream_t stream) {
  AfterDecoding(launch, StartKernel{launch, stream});
  return cudaGetLastError();
}

cudaError_t LaunchDecodePlanes(const PlaneDecodeLaunch& launch, cudaStream_t stream) {
  if (launch.streams == 0) return cudaSuccess;
  return StartWide<PlaneDecodeLaunch, DecodePlanes>(launch, stream);
}

cudaError_t LaunchEncodePlanes(const PlaneEncodeLaunch& launch, cudaStream_t stream) {
  if (launch.streams == 0) return cudaSuccess;
  const StartKernel start{launch, stream};
  start(OrderTokens());
  if (launch.adapts) start(FitTables());
  start(ChooseTables());
  start(SumGains());
  return StartWide<PlaneEncodeLaunch, EncodePlanes>(launch, stream);
}

cudaError_t LaunchMoveWords(const WordsLaunch& launch, cudaStream_t stream) {
  if (launch.move_count > 0) StartKernel{launch, stream}(MoveWords());
  return cudaGetLastError();
}

}  // namespace kvstow::gpu
