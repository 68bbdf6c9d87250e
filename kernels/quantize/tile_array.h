// Arrays for one tile of a slab: on the stack for tiles of the usual size, and not initialised.
#ifndef KVSTOW_KERNELS_QUANTIZE_TILE_ARRAY_H_
#define KVSTOW_KERNELS_QUANTIZE_TILE_ARRAY_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/fixed_array.h"

namespace kvstow {

// The values of a tile that a slab run codec aims at: with their codes they fit into the
// first-level cache.
inline constexpr size_t kTileValues = 2048;

using FloatArray = absl::FixedArray<float, kTileValues / 16>;  // of scales
using CodeArray = absl::FixedArray<uint8_t, 2 * kTileValues>;  // a tile is whole tokens

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_TILE_ARRAY_H_
