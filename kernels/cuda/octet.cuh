// One octet: raw bytes to floats and back, rotation within it, and the accesses to memory.
//
// This and quantize.cuh are all of the arithmetic. Each function is the scalar reference of what it
// names, value by value: the same operations in the same order. nvcc compiles it with --fmad=false,
// so that none of them are fused, and IEEE division and denormals are nvcc's defaults. The host
// compiler takes the same text for the emulation that tests compare with the CPU's codecs; where
// the GPU has an instruction of its own, both ways stand side by side.
#ifndef KVSTOW_KERNELS_CUDA_OCTET_CUH_
#define KVSTOW_KERNELS_CUDA_OCTET_CUH_

#include <algorithm>
#include <bit>

#include "kernels/cuda/slab_layout.h"
#include "kernels/half.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#define KVSTOW_GPU __host__ __device__ __forceinline__
#else
#define KVSTOW_GPU inline
#endif

namespace kvstow::gpu {

struct RawOctet {
  alignas(kOctetBytes) uint16_t value[kOctet];
};

KVSTOW_GPU RawOctet LoadRaw(const uint8_t* from) {
  return *reinterpret_cast<const RawOctet*>(from);  // one load: both are aligned to 16 bytes
}
KVSTOW_GPU void StoreRaw(const RawOctet& octet, uint8_t* to) {
  *reinterpret_cast<RawOctet*>(to) = octet;
}

KVSTOW_GPU float RawToFloat(uint16_t value, bool bf16) {
  if (bf16) return Bf16ToFloat(value);
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(value));
#else
  return HalfToFloat(value);
#endif
}

// Saturates, as StoreFloats does.
KVSTOW_GPU uint16_t FloatToRaw(float x, bool bf16) {
  const float most = bf16 ? kMaxBf16 : kMaxHalf;
  x = std::min(std::max(x, -most), most);
  if (bf16) return FloatToBf16(x);
#ifdef __CUDA_ARCH__
  return __half_as_ushort(__float2half_rn(x));
#else
  return FloatToHalf(x);
#endif
}

KVSTOW_GPU bool IsFiniteRaw(uint16_t value, bool bf16) {
  const uint32_t exponent = bf16 ? 0x7f80 : 0x7c00;
  return (value & exponent) != exponent;
}

// False when a value is NaN or Inf.
KVSTOW_GPU bool RawToFloats(const RawOctet& octet, bool bf16, float* x) {
  bool finite = true;
  for (uint32_t j = 0; j < kOctet; ++j) {
    finite &= IsFiniteRaw(octet.value[j], bf16);
    x[j] = RawToFloat(octet.value[j], bf16);
  }
  return finite;
}

KVSTOW_GPU void FlipSigns(uint8_t signs, float* x) {
  for (uint32_t j = 0; j < kOctet; ++j) {
    x[j] = std::bit_cast<float>(std::bit_cast<uint32_t>(x[j]) ^ (signs >> j & 1u) << 31);
  }
}

// The stages of a Hadamard transform of `radix` values with strides 1, 2, .. radix / 2.
KVSTOW_GPU void Butterflies(uint32_t radix, float* x) {
  for (uint32_t stride = 1; stride < kOctet; stride *= 2) {
    if (stride >= radix) break;
    for (uint32_t i = 0; i < kOctet; ++i) {
      if ((i & stride) != 0) continue;
      const float a = x[i], b = x[i + stride];
      x[i] = a + b;
      x[i + stride] = a - b;
    }
  }
}

template <typename Word>
KVSTOW_GPU bool IsAligned(const uint8_t* at) {
  return reinterpret_cast<uintptr_t>(at) % sizeof(Word) == 0;
}

// One fp16, at any place.
KVSTOW_GPU uint16_t ReadHalf(const uint8_t* from) {
  if (IsAligned<uint16_t>(from)) return *reinterpret_cast<const uint16_t*>(from);
  return static_cast<uint16_t>(from[0] | from[1] << 8);
}
KVSTOW_GPU void WriteHalf(uint16_t half, uint8_t* to) {
  to[0] = static_cast<uint8_t>(half);
  to[1] = static_cast<uint8_t>(half >> 8);
}

// `bytes` bytes of a word, little end first, in one access where size and place allow it.
KVSTOW_GPU void StoreBytes(uint64_t word, uint32_t bytes, uint8_t* to) {
  if (bytes == 8 && IsAligned<uint64_t>(to)) {
    *reinterpret_cast<uint64_t*>(to) = word;
  } else if (bytes == 4 && IsAligned<uint32_t>(to)) {
    *reinterpret_cast<uint32_t*>(to) = static_cast<uint32_t>(word);
  } else if (bytes == 2 && IsAligned<uint16_t>(to)) {
    *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(word);
  } else {
    for (uint32_t i = 0; i < bytes; ++i) to[i] = static_cast<uint8_t>(word >> (8 * i));
  }
}
KVSTOW_GPU uint64_t LoadBytes(const uint8_t* from, uint32_t bytes) {
  if (bytes == 8 && IsAligned<uint64_t>(from)) return *reinterpret_cast<const uint64_t*>(from);
  if (bytes == 4 && IsAligned<uint32_t>(from)) return *reinterpret_cast<const uint32_t*>(from);
  if (bytes == 2 && IsAligned<uint16_t>(from)) return *reinterpret_cast<const uint16_t*>(from);
  uint64_t word = 0;
  for (uint32_t i = 0; i < bytes; ++i) word |= static_cast<uint64_t>(from[i]) << (8 * i);
  return word;
}

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_OCTET_CUH_
