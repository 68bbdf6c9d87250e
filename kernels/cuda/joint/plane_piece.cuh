// What decoding and encoding of streams of the plane coder share.
#ifndef KVSTOW_KERNELS_CUDA_JOINT_PLANE_PIECE_CUH_
#define KVSTOW_KERNELS_CUDA_JOINT_PLANE_PIECE_CUH_

#include "kernels/cuda/joint/half_warp.cuh"
#include "kernels/device/plane_layout.h"

namespace kvstow::gpu {

inline constexpr uint32_t kPieceRows = 8;  // coefficients of a piece
static_assert(kThreads / kWarp >= kMaxPlaneLevels);

// A thread's part of the copy.
KVSTOW_GPU void CopyTable(const PlaneTable* from, PlaneTable* to, uint32_t thread) {
  for (uint32_t i = thread; i < sizeof(PlaneTable) / sizeof(Words); i += kThreads) {
    StoreWords(LoadWords(reinterpret_cast<const Words*>(from) + i),
               reinterpret_cast<Words*>(to) + i);
  }
}

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_JOINT_PLANE_PIECE_CUH_
