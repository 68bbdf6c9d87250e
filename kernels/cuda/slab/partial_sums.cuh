// Sums of squares for the gains of levels, in the order of squared_error.h: 16 partial sums of each
// block of 1,024 values in F32, then all of a slab one after another in F64.
#ifndef KVSTOW_KERNELS_CUDA_SLAB_PARTIAL_SUMS_CUH_
#define KVSTOW_KERNELS_CUDA_SLAB_PARTIAL_SUMS_CUH_

#include "kernels/cuda/slab/tile.cuh"

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

// Where the partial sums of a slab's block go: of the slab's energy (0) or error after that many
// levels.
KVSTOW_GPU float* PartialsOf(const Launch& launch, uint32_t page, uint32_t layer, uint32_t part,
                             uint32_t which, uint32_t block) {
  const PageLayout& layout = launch.layout;
  const uint32_t sums = launch.ops.levels + 1;
  // Counts blocks: 2^32 of them would take 256 GiB.
  const uint32_t k_blocks = layout.part[0].blocks, all_blocks = k_blocks + layout.part[1].blocks;
  const uint32_t slab = (page * layout.layers + layer) * all_blocks + (part == 0 ? 0 : k_blocks);
  return launch.partials + size_t{slab * sums + which * layout.part[part].blocks + block} * kSums;
}
KVSTOW_GPU float* Partials(const Launch& launch, const TilePlace& at, uint32_t which) {
  return PartialsOf(launch, at.page, at.layer, at.part, which,
                    at.tile * (kTileOctets / kBlockOctets));
}

// Adds the partial sums of slab and quantity number `item` of the launch.
KVSTOW_GPU void AddPartials(const Launch& launch, uint32_t item) {
  const PageLayout& layout = launch.layout;
  const uint32_t sums = launch.ops.levels + 1;
  if (item >= launch.pages * layout.slabs() * sums) return;
  const uint32_t slab = item / sums, layer = slab / layout.parts, part = slab % layout.parts;
  const float* const partials = PartialsOf(launch, 0, layer, part, item % sums, 0);
  double total = 0;
#ifdef __CUDA_ARCH__
#pragma unroll 4  // the loads of four blocks are under way at once
#endif
  for (uint32_t block = 0; block < layout.part[part].blocks; ++block) {
    for (uint32_t i = 0; i < kSums; i += 4) {
      const Words words = LoadWords(partials + block * kSums + i);
      for (uint32_t j = 0; j < 4; ++j) total += std::bit_cast<float>(words.word[j]);
    }
  }
  launch.totals[item] = total;
}

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_SLAB_PARTIAL_SUMS_CUH_
