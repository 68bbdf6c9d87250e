// The steps of a policy on the GPU share this: where values and scores lie, sums over vectors.
//
// A step is a struct of plain numbers: Blocks() thread blocks a page, each with SharedBytes() of
// shared memory, aligned to 16; Code() is the work of one of them, in phases as tile.cuh has them.
// EachItem (each_item.cuh) makes a step of work that is done entry by entry.
// Arithmetic is that of kernels/importance, value by value in the same order: octet.cuh says how
// it is compiled.
#ifndef KVSTOW_KERNELS_CUDA_SCORE_SCORE_MEMORY_CUH_
#define KVSTOW_KERNELS_CUDA_SCORE_SCORE_MEMORY_CUH_

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/cuda/each_item.cuh"
#include "kernels/cuda/octet.cuh"
#include "kernels/device/score_layout.h"

namespace kvstow::gpu {

KVSTOW_GPU float* MapOf(const ScoreLaunch& launch, uint32_t slot, uint32_t page) {
  return launch.maps + (size_t{slot} * launch.pages + page) * launch.layout.entries();
}

// All scores are written so: those that are not finite are left to the CPU.
KVSTOW_GPU void PutScore(const ScoreLaunch& launch, uint32_t page, float score, float* to) {
  if (!IsFiniteFloat(score)) launch.refused[page] = 1;
  *to = score;
}

// K or V of one layer of a page: [tokens, heads, dim].
class Slab {
 public:
  KVSTOW_GPU Slab(const ScoreLaunch& launch, uint32_t page, uint32_t layer, uint32_t part)
      : raw_(launch.raw[page] + layer * launch.layout.layer_bytes +
             launch.layout.part_offset[part]),
        values_(launch.layout.values),
        refused_(launch.refused + page) {}

  KVSTOW_GPU float operator[](size_t i) const {
    switch (values_) {
      case Values::kF16:
        return FloatOfHalf(reinterpret_cast<const uint16_t*>(raw_)[i]);
      case Values::kBF16:
        return Bf16ToFloat(reinterpret_cast<const uint16_t*>(raw_)[i]);
      case Values::kF32:
        break;
    }
    return reinterpret_cast<const float*>(raw_)[i];
  }
  // The same, and the page is refused when the value is NaN or Inf.
  KVSTOW_GPU float Checked(size_t i) const {
    const float x = (*this)[i];
    if (!IsFiniteFloat(x)) *refused_ = 1;
    return x;
  }

 private:
  const uint8_t* const raw_;
  const Values values_;
  uint32_t* const refused_;
};

// The room of so many floats in shared memory. nvcc reads the ends of an array by 16 bytes at once:
// what lies behind it must be of the block, and no other thread may write it meanwhile.
constexpr uint32_t WholeWords(uint32_t floats) { return (floats + 3) / 4 * 4; }

// The sums of vector_sums.h over the channels of up to kRows vectors at once. In one phase 16
// threads a vector make its partial sums side by side, in the next one thread a vector adds them
// up.
inline constexpr uint32_t kRows = 64;
inline constexpr uint32_t kRowStride = kSums + 1;  // rows begin in different banks
inline constexpr size_t kRowSumFloats = kRows * kRowStride;
// Of `vectors`, the rows of the turn that begins with vector `first`.
KVSTOW_GPU uint32_t RowsFrom(uint32_t first, uint32_t vectors) {
  return vectors - first < kRows ? vectors - first : kRows;
}

// term(row, channel) is what is added.
template <typename Term>
KVSTOW_GPU void PutPartials(uint32_t thread, uint32_t rows, uint32_t dim, float* partials,
                            const Term& term) {
  for (uint32_t i = thread; i < rows * kSums; i += kThreads) {
    const uint32_t row = i / kSums, lane = i % kSums;
    float sum = 0;
    for (uint32_t c = lane; c < dim; c += kSums) sum += term(row, c);
    partials[row * kRowStride + lane] = sum;
  }
}

// Uses the partial sums up.
KVSTOW_GPU float FoldRow(float* partials, uint32_t row) {
  float* const partial = partials + row * kRowStride;
  for (uint32_t half = kSums / 2; half > 0; half /= 2) {
    for (uint32_t i = 0; i < half; ++i) partial[i] += partial[i + half];
  }
  return partial[0];
}

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_SCORE_SCORE_MEMORY_CUH_
