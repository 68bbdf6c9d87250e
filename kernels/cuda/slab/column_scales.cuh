// Affine groups of consecutive tokens of one channel: their scales are made before the tiles are
// coded, since a group goes through many tiles.
#ifndef KVSTOW_KERNELS_CUDA_SLAB_COLUMN_SCALES_CUH_
#define KVSTOW_KERNELS_CUDA_SLAB_COLUMN_SCALES_CUH_

#include "kernels/cuda/slab/quantize.cuh"

namespace kvstow::gpu {

// Steps and minima of affine groups across tokens: eight neighbouring columns of one group.
KVSTOW_GPU void ColumnScales(const Launch& launch, uint32_t page, uint32_t layer, uint32_t which,
                             uint32_t item) {
  const SlabPart& part = launch.layout.part[which];
  const uint32_t groups = (part.tokens + part.group_tokens - 1) / part.group_tokens;
  if (!part.columns || item >= groups * part.row_octets) return;
  const uint32_t first = item / part.row_octets * part.group_tokens;
  const uint32_t end = std::min(first + part.group_tokens, part.tokens);
  const uint8_t* const raw =
      launch.page[page].raw + layer * launch.layout.raw_layer_bytes + part.raw_offset;
  uint8_t* const body = launch.page[page].coded + launch.layout.level_offset[0] +
                        layer * launch.layout.layer_bytes[0] + part.body_offset[0];
  float low[kOctet] = {}, high[kOctet] = {};
  for (uint32_t row = first; row < end; ++row) {
    const size_t octet = size_t{row} * part.row_octets + item % part.row_octets;
    float x[kOctet];
    if (!RawToFloats(LoadWords(raw + octet * kOctetBytes), launch.ops.bf16, x)) {
      launch.refused[page] = 1;
    }
    for (uint32_t j = 0; j < kOctet; ++j) {
      low[j] = row == first ? x[j] : Least(low[j], x[j]);
      high[j] = row == first ? x[j] : Most(high[j], x[j]);
    }
  }
  for (uint32_t j = 0; j < kOctet; ++j) {
    const Halves halves = AffineHalves(low[j], high[j], launch.ops.total_bits);
    if (!Finite(halves)) launch.refused[page] = 1;
    const size_t index = size_t{item} * kOctet + j;
    WriteHalf(halves.first, body + 2 * index);
    WriteHalf(halves.minimum, body + 2 * (part.scales + index));
  }
}

// Returns the halves of channel j of an octet. `body` is the slab's body of level 0.
KVSTOW_GPU Halves ColumnHalves(const SlabPart& part, const uint8_t* body, uint32_t octet,
                               uint32_t j) {
  const uint32_t group = octet / part.row_octets / part.group_tokens;
  const size_t index = (size_t{group} * part.row_octets + octet % part.row_octets) * kOctet + j;
  return {ReadHalf(body + 2 * index), ReadHalf(body + 2 * (part.scales + index))};
}

// Returns the halves of all channels of an octet.
KVSTOW_GPU void OctetHalves(const SlabPart& part, const uint8_t* body, uint32_t octet,
                            Halves* halves) {
  const uint32_t group = octet / part.row_octets / part.group_tokens;
  const size_t index = (size_t{group} * part.row_octets + octet % part.row_octets) * kOctet;
  const uint8_t* const first = body + 2 * index;
  const uint8_t* const minimum = first + 2 * size_t{part.scales};
  if (IsAligned<Words>(first) && part.scales % kOctet == 0) {
    const Words firsts = LoadWords(first), minima = LoadWords(minimum);
    for (uint32_t j = 0; j < kOctet; ++j) {
      halves[j] = {static_cast<uint16_t>(firsts.word[j / 2] >> 16 * (j % 2)),
                   static_cast<uint16_t>(minima.word[j / 2] >> 16 * (j % 2))};
    }
  } else {
    for (uint32_t j = 0; j < kOctet; ++j) {
      halves[j] = {ReadHalf(first + 2 * j), ReadHalf(minimum + 2 * j)};
    }
  }
}

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_SLAB_COLUMN_SCALES_CUH_
