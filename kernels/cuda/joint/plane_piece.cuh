// What decoding and encoding of streams of the plane coder share.
#ifndef KVSTOW_KERNELS_CUDA_JOINT_PLANE_PIECE_CUH_
#define KVSTOW_KERNELS_CUDA_JOINT_PLANE_PIECE_CUH_

#include "kernels/cuda/joint/half_warp.cuh"
#include "kernels/device/plane_layout.h"

namespace kvstow::gpu {

static_assert(kThreads / kWarp >= kMaxPlaneLevels);

// A thread's part of the copy.
KVSTOW_GPU void CopyTable(const PlaneTable* from, PlaneTable* to, uint32_t thread) {
  for (uint32_t i = thread; i < sizeof(PlaneTable) / sizeof(Words); i += kThreads) {
    StoreWords(LoadWords(reinterpret_cast<const Words*>(from) + i),
               reinterpret_cast<Words*>(to) + i);
  }
}

// The frequency of a bit 0 that refines the magnitude `coarse` to a level. `row` is PlaneRow of the
// level before.
KVSTOW_GPU uint32_t ZeroOf(const PlaneTable& table, uint32_t level, int row, uint32_t coarse) {
  return table.zero[level][row][coarse < kPlaneContexts - 1 ? coarse : kPlaneContexts - 1];
}

// The value of a magnitude at a level, in steps of that level: PlaneCoder::Dequantize. `row` is
// PlaneRow of the level; the magnitude is not 0.
KVSTOW_GPU float CentreOf(const PlaneTable& table, uint32_t level, int row, uint32_t magnitude) {
  const uint32_t column = magnitude < kPlaneSymbols ? magnitude : kPlaneSymbols - 1;
  const uint8_t centre = table.centre[level][row < kPlaneRows ? row : kPlaneRows - 1][column];
  return static_cast<float>(magnitude) - 0.5f + static_cast<float>(centre) * (1.0f / 256);
}

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_JOINT_PLANE_PIECE_CUH_
