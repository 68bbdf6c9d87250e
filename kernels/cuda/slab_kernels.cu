// The kernels: a grid of tiles of a layer by layers by pages. All that they do is in
// encode_tile.cuh and decode_tile.cuh.
//
// Nothing is special to an architecture: sm_80 and up (16-byte loads, 4 KiB of arguments). A tile
// takes at most 40 KiB of shared memory, at head_dim 64 20 KiB: 8 thread blocks on an SM.
#include <algorithm>

#include "kernels/cuda/decode_tile.cuh"
#include "kernels/cuda/encode_tile.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/run_step.cuh"
#include "kernels/device/batches.h"

namespace kvstow::gpu {
namespace {

template <Kind kind>
__global__ void __launch_bounds__(kThreads) EncodeTiles(const __grid_constant__ Launch launch) {
  extern __shared__ __align__(16) uint8_t shared[];
  EncodeTile<kind>(launch, blockIdx.z, blockIdx.y, blockIdx.x, shared).Code(RunPhase());
}

template <Kind kind>
__global__ void __launch_bounds__(kThreads) DecodeTiles(const __grid_constant__ Launch launch) {
  extern __shared__ __align__(16) uint8_t shared[];
  DecodeTile<kind>(launch, blockIdx.z, blockIdx.y, blockIdx.x, shared).Code(RunPhase());
}

// Grid: items of a slab by slabs of a page by pages.
__global__ void __launch_bounds__(kThreads)
    MakeColumnScales(const __grid_constant__ Launch launch) {
  const uint32_t parts = launch.layout.parts;
  ColumnScales(launch, blockIdx.z, blockIdx.y / parts, blockIdx.y % parts,
               blockIdx.x * kThreads + threadIdx.x);
}

__global__ void __launch_bounds__(kThreads) AddAllPartials(const __grid_constant__ Launch launch) {
  AddPartials(launch, blockIdx.x * kThreads + threadIdx.x);
}

constexpr uint32_t BlocksFor(uint32_t threads) { return (threads + kThreads - 1) / kThreads; }

// Column groups of the part that has the most of them; 0 = there are none.
uint32_t ColumnItems(const PageLayout& layout) {
  uint32_t items = 0;
  for (const SlabPart& part : layout.part) {
    if (part.columns) items = std::max(items, part.scales / kOctet);
  }
  return items;
}

dim3 GridOf(const Launch& launch) {
  return dim3(launch.layout.layer_tiles(), launch.layout.layers, launch.pages);
}

}  // namespace

cudaError_t LaunchEncode(const Launch& launch, cudaStream_t stream) {
  const PageLayout& layout = launch.layout;
  if (const uint32_t items = ColumnItems(layout); items > 0) {
    const dim3 grid(BlocksFor(items), layout.slabs(), launch.pages);
    MakeColumnScales<<<grid, kThreads, 0, stream>>>(launch);
  }
  const size_t shared =
      std::max(EncodeSharedBytes(layout.part[0]), EncodeSharedBytes(layout.part[1]));
  WithKind(launch.ops.kind, [&](auto kind) {
    EncodeTiles<decltype(kind)::value><<<GridOf(launch), kThreads, shared, stream>>>(launch);
  });
  if (launch.partials != nullptr) {
    const uint32_t items = launch.pages * layout.slabs() * (launch.ops.levels + 1);
    AddAllPartials<<<BlocksFor(items), kThreads, 0, stream>>>(launch);
  }
  return cudaGetLastError();
}

cudaError_t LaunchDecode(const Launch& launch, cudaStream_t stream) {
  const bool rotated = launch.ops.rotated;
  const size_t shared = std::max(DecodeSharedBytes(launch.layout.part[0], rotated),
                                 DecodeSharedBytes(launch.layout.part[1], rotated));
  WithKind(launch.ops.kind, [&](auto kind) {
    DecodeTiles<decltype(kind)::value><<<GridOf(launch), kThreads, shared, stream>>>(launch);
  });
  return cudaGetLastError();
}

}  // namespace kvstow::gpu
