// The kernels. Strips (strip.cuh) code the usual pages: a warp a strip, without barriers. Tiles
// (tile.cuh) code the others: a thread block a tile. The host chooses when it starts a launch.
//
// Nothing is special to an architecture: sm_80 and up (16-byte loads, 4 KiB of arguments). A tile
// takes at most 40 KiB of shared memory, at head_dim 64 20 KiB: 8 thread blocks on an SM.
#include <algorithm>

#include "kernels/cuda/run_step.cuh"
#include "kernels/cuda/slab/decode_strip.cuh"
#include "kernels/cuda/slab/decode_tile.cuh"
#include "kernels/cuda/slab/encode_strip.cuh"
#include "kernels/cuda/slab/encode_tile.cuh"
#include "kernels/cuda/slab/launch.h"
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

// Runs the steps of a strip: see strip.cuh. Shuffles are between all lanes of the warp.
template <typename State>
struct RunWarp {
  State& state;
  uint32_t lane;

  template <typename Step>
  __device__ void Each(const Step& step) const {
    step(lane, state);
    __syncwarp();
  }
  template <typename Step>
  __device__ void Pairs(uint32_t distance, const Step& step) const {
    step(lane, state, [&](const auto& of) {
      return __shfl_xor_sync(0xffffffffu, of(state), static_cast<int>(distance));
    });
  }
};

constexpr uint32_t kWarps = 4;        // of a thread block that codes strips
constexpr uint32_t kStripBlocks = 4;  // on an SM at least: up to 128 registers

// Grid: strips of a slab by slabs of a page by pages.
template <typename Coder>
__device__ void CodeStrip(const Launch& launch, uint8_t* shared) {
  const uint32_t parts = launch.layout.parts, warp = threadIdx.x / kLanes;
  const StripPlace at{blockIdx.z, blockIdx.y >> (parts - 1), blockIdx.y & (parts - 1),  // 1 or 2
                      blockIdx.x * kWarps + warp};
  if (at.strip >= launch.layout.part[at.part].blocks) return;
  typename Coder::State state;
  Coder(launch, at, shared + warp * Coder::SharedBytes())
      .Code(RunWarp<typename Coder::State>{state, threadIdx.x % kLanes});
}

template <typename Coder>
__global__ void __launch_bounds__(kWarps* kLanes, kStripBlocks)
    EncodeStrips(const __grid_constant__ Launch launch) {
  extern __shared__ __align__(16) uint8_t shared[];
  CodeStrip<Coder>(launch, shared);
}

template <typename Coder>
__global__ void __launch_bounds__(kWarps* kLanes, kStripBlocks)
    DecodeStrips(const __grid_constant__ Launch launch) {
  extern __shared__ __align__(16) uint8_t shared[];
  CodeStrip<Coder>(launch, shared);
}

// Grid: items of a slab by slabs of a page by pages.
__global__ void __launch_bounds__(kThreads)
    MakeColumnScales(const __grid_constant__ Launch launch) {
  const uint32_t parts = launch.layout.parts;
  ColumnScales(launch, blockIdx.z, blockIdx.y / parts, blockIdx.y % parts,
               blockIdx.x * kThreads + threadIdx.x);
}

// A warp a thread block: few items go to all parts of the GPU.
__global__ void __launch_bounds__(kLanes) AddAllPartials(const __grid_constant__ Launch launch) {
  AddPartials(launch, blockIdx.x * kLanes + threadIdx.x);
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

dim3 StripGridOf(const Launch& launch) {
  const PageLayout& layout = launch.layout;
  const uint32_t strips = std::max(layout.part[0].blocks, layout.part[1].blocks);
  return dim3((strips + kWarps - 1) / kWarps, layout.slabs(), launch.pages);
}

void EncodeAllStrips(const Launch& launch, cudaStream_t stream) {
  WithEncoder(launch, [&](auto type) {
    using Coder = typename decltype(type)::type;
    const size_t shared = kWarps * Coder::SharedBytes();
    EncodeStrips<Coder><<<StripGridOf(launch), kWarps * kLanes, shared, stream>>>(launch);
  });
}

void DecodeAllStrips(const Launch& launch, cudaStream_t stream) {
  WithDecoder(launch, [&](auto type) {
    using Coder = typename decltype(type)::type;
    const size_t shared = kWarps * Coder::SharedBytes();
    DecodeStrips<Coder><<<StripGridOf(launch), kWarps * kLanes, shared, stream>>>(launch);
  });
}

void EncodeAllTiles(const Launch& launch, cudaStream_t stream) {
  const size_t shared =
      std::max(EncodeSharedBytes(launch.layout.part[0]), EncodeSharedBytes(launch.layout.part[1]));
  WithKind(launch.ops.kind, [&](auto kind) {
    EncodeTiles<decltype(kind)::value><<<GridOf(launch), kThreads, shared, stream>>>(launch);
  });
}

void DecodeAllTiles(const Launch& launch, cudaStream_t stream) {
  const bool rotated = launch.ops.rotated;
  const size_t shared = std::max(DecodeSharedBytes(launch.layout.part[0], rotated),
                                 DecodeSharedBytes(launch.layout.part[1], rotated));
  WithKind(launch.ops.kind, [&](auto kind) {
    DecodeTiles<decltype(kind)::value><<<GridOf(launch), kThreads, shared, stream>>>(launch);
  });
}

}  // namespace

cudaError_t LaunchEncode(const Launch& launch, cudaStream_t stream) {
  const PageLayout& layout = launch.layout;
  if (const uint32_t items = ColumnItems(layout); items > 0) {
    const dim3 grid(BlocksFor(items), layout.slabs(), launch.pages);
    MakeColumnScales<<<grid, kThreads, 0, stream>>>(launch);
  }
  InStrips(layout, launch.ops) ? EncodeAllStrips(launch, stream) : EncodeAllTiles(launch, stream);
  if (launch.partials != nullptr) {
    const uint32_t items = launch.pages * layout.slabs() * (launch.ops.levels + 1);
    AddAllPartials<<<(items + kLanes - 1) / kLanes, kLanes, 0, stream>>>(launch);
  }
  return cudaGetLastError();
}

cudaError_t LaunchDecode(const Launch& launch, cudaStream_t stream) {
  InStrips(launch.layout, launch.ops) ? DecodeAllStrips(launch, stream)
                                      : DecodeAllTiles(launch, stream);
  return cudaGetLastError();
}

}  // namespace kvstow::gpu
