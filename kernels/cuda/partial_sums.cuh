// Sums of squares for the gains of levels, in the order of squared_error.h: 16 partial sums of each
// block of 1,024 values in F32, then all of a slab one after another in F64.
#ifndef KVSTOW_KERNELS_CUDA_PARTIAL_SUMS_CUH_
#define KVSTOW_KERNELS_CUDA_PARTIAL_SUMS_CUH_

#include "kernels/cuda/tile.cuh"

namespace kvstow::gpu {

// Partial sum number `sum` of a block of `count` values; value(k) is the k-th.
template <typename Value>
KVSTOW_GPU float PartialSum(uint32_t count, uint32_t sum, Value value) {
  const uint32_t rows = count / kSums * kSums;
  float total = 0;
  for (uint32_t k = sum; k < rows; k += kSums) total += value(k) * value(k);
  for (uint32_t k = rows; sum == 0 && k < count; ++k) total += value(k) * value(k);
  return total;
}

// Where the partial sums of a tile go: of the slab's energy (0) or error after that many levels.
KVSTOW_GPU float* Partials(const Launch& launch, const TilePlace& at, uint32_t which) {
  const PageLayout& layout = launch.layout;
  const uint32_t sums = launch.ops.levels + 1;
  const size_t layer = size_t{at.page} * layout.layers + at.layer;
  const size_t slab = layer * layout.layer_partials(launch.ops.levels) +
                      (at.part == 0 ? 0 : size_t{layout.part[0].blocks} * sums * kSums);
  const size_t block =
      size_t{which} * layout.part[at.part].blocks + at.tile * (kTileOctets / kBlockOctets);
  return launch.partials + slab + block * kSums;
}

// Adds the partial sums of slab and quantity number `item` of the launch.
KVSTOW_GPU void AddPartials(const Launch& launch, uint32_t item) {
  const PageLayout& layout = launch.layout;
  const uint32_t sums = launch.ops.levels + 1;
  if (item >= launch.pages * layout.slabs() * sums) return;
  const uint32_t slab = item / sums, layer = slab / layout.parts, which = slab % layout.parts;
  const size_t count = size_t{layout.part[which].blocks} * kSums;
  const float* partial = launch.partials + layer * layout.layer_partials(launch.ops.levels) +
                         (which == 0 ? 0 : size_t{layout.part[0].blocks} * sums * kSums) +
                         item % sums * count;
  double total = 0;
  for (size_t i = 0; i < count; ++i) total += partial[i];
  launch.totals[item] = total;
}

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_PARTIAL_SUMS_CUH_
