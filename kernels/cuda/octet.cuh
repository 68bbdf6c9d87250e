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
#include <cstring>
#include <type_traits>

#include "kernels/device/slab_layout.h"
#include "kernels/page/half.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#define KVSTOW_GPU __host__ __device__ __forceinline__
#else
#define KVSTOW_GPU inline
#endif
// Before a loop whose body indexes registers; before one that runs seldom.
#ifdef __CUDA_ARCH__
#define KVSTOW_UNROLL _Pragma("unroll")
#define KVSTOW_NO_UNROLL _Pragma("unroll 1")
#else
#define KVSTOW_UNROLL
#define KVSTOW_NO_UNROLL
#endif

namespace kvstow::gpu {

// The compiler computes the value here, once, and not again wherever it is used. A pointer is one
// to global memory, a number has 32 bits.
template <typename T>
KVSTOW_GPU T Kept(T value) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_pointer_v<T>) {
    asm volatile("" : "+l"(value));
    __builtin_assume(__isGlobal(value));
  } else {
    asm volatile("" : "+r"(value));
  }
#endif
  return value;
}

// 16 bytes in one access: raw values of an octet, or four floats. The place is aligned to 16.
struct Words {
  uint32_t word[4];
};
KVSTOW_GPU Words LoadWords(const void* from) {
#ifdef __CUDA_ARCH__
  const uint4 words = *static_cast<const uint4*>(from);
  return {{words.x, words.y, words.z, words.w}};
#else
  Words words;
  std::memcpy(&words, from, sizeof(words));
  return words;
#endif
}
KVSTOW_GPU void StoreWords(const Words& words, void* to) {
#ifdef __CUDA_ARCH__
  *static_cast<uint4*>(to) = make_uint4(words.word[0], words.word[1], words.word[2], words.word[3]);
#else
  std::memcpy(to, &words, sizeof(words));
#endif
}

// An octet of floats, aligned to 16 bytes.
KVSTOW_GPU void LoadFloats(const float* from, float* x) {
  const Words low = LoadWords(from), high = LoadWords(from + kOctet / 2);
  for (uint32_t j = 0; j < kOctet / 2; ++j) {
    x[j] = std::bit_cast<float>(low.word[j]);
    x[j + kOctet / 2] = std::bit_cast<float>(high.word[j]);
  }
}
KVSTOW_GPU void StoreFloats(const float* x, float* to) {
  Words low, high;
  for (uint32_t j = 0; j < kOctet / 2; ++j) {
    low.word[j] = std::bit_cast<uint32_t>(x[j]);
    high.word[j] = std::bit_cast<uint32_t>(x[j + kOctet / 2]);
  }
  StoreWords(low, to);
  StoreWords(high, to + kOctet / 2);
}

// Four floats, aligned to 16 bytes.
KVSTOW_GPU void StoreFourFloats(const float* x, float* to) {
  Words words;
  for (uint32_t j = 0; j < 4; ++j) words.word[j] = std::bit_cast<uint32_t>(x[j]);
  StoreWords(words, to);
}

// The values must be finite. Either of two zeros may come out.
KVSTOW_GPU float Least(float a, float b) {
#ifdef __CUDA_ARCH__
  return fminf(a, b);
#else
  return std::min(a, b);
#endif
}
KVSTOW_GPU float Most(float a, float b) {
#ifdef __CUDA_ARCH__
  return fmaxf(a, b);
#else
  return std::max(a, b);
#endif
}

// The same of any values: NaN when one of the two is NaN.
KVSTOW_GPU float LeastOrNan(float a, float b) {
#ifdef __CUDA_ARCH__
  float least;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
  return least;
#else
  return a < b || a != a ? a : b;
#endif
}
KVSTOW_GPU float MostOrNan(float a, float b) {
#ifdef __CUDA_ARCH__
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
  return most;
#else
  return a > b || a != a ? a : b;
#endif
}

KVSTOW_GPU bool IsFiniteFloat(float x) {
  return (std::bit_cast<uint32_t>(x) & 0x7f800000) != 0x7f800000;
}

// As HalfToFloat and FloatToHalf.
KVSTOW_GPU float FloatOfHalf(uint16_t half) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(half));
#else
  return HalfToFloat(half);
#endif
}
KVSTOW_GPU uint16_t HalfOfFloat(float x) {
#ifdef __CUDA_ARCH__
  return __half_as_ushort(__float2half_rn(x));
#else
  return FloatToHalf(x);
#endif
}

KVSTOW_GPU void FloatsOfHalves(uint32_t halves, float* x) {
  x[0] = FloatOfHalf(static_cast<uint16_t>(halves));
  x[1] = FloatOfHalf(static_cast<uint16_t>(halves >> 16));
}

// False when a value is NaN or Inf: the bits of its exponent are all set, so that one more in the
// lowest of them carries into the sign's place, which is masked out before.
KVSTOW_GPU bool IsFinite(const Words& raw, bool bf16) {
  const uint32_t exponents = bf16 ? 0x7f807f80 : 0x7c007c00;
  const uint32_t lowest = bf16 ? 0x00800080 : 0x04000400;
  uint32_t carries = 0;
  for (uint32_t i = 0; i < 4; ++i) carries |= (raw.word[i] & exponents) + lowest;
  return (carries & 0x80008000) == 0;
}

KVSTOW_GPU void ToFloats(const Words& raw, bool bf16, float* x) {
  if (bf16) {
    for (uint32_t i = 0; i < 4; ++i) {
      x[2 * i] = std::bit_cast<float>(raw.word[i] << 16);
      x[2 * i + 1] = std::bit_cast<float>(raw.word[i] & 0xffff0000u);
    }
  } else {
    for (uint32_t i = 0; i < 4; ++i) {
      FloatsOfHalves(raw.word[i], x + 2 * i);
    }
  }
}

// Returns IsFinite.
KVSTOW_GPU bool RawToFloats(const Words& raw, bool bf16, float* x) {
  ToFloats(raw, bf16, x);
  return IsFinite(raw, bf16);
}

// Two floats to fp16 or bf16, the first in the low half. Saturates, as StoreFloats of convert.h
// does.
KVSTOW_GPU uint32_t FloatsToHalves(float low, float high) {
#ifdef __CUDA_ARCH__
  uint32_t both;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#else
  return HalfOfFloat(Least(Most(low, -kMaxHalf), kMaxHalf)) |
         uint32_t{HalfOfFloat(Least(Most(high, -kMaxHalf), kMaxHalf))} << 16;
#endif
}
KVSTOW_GPU uint32_t FloatsToBf16(float low, float high) {
#ifdef __CUDA_ARCH__
  uint32_t both;
  asm("cvt.rn.satfinite.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#else
  return FloatToBf16(Least(Most(low, -kMaxBf16), kMaxBf16)) |
         uint32_t{FloatToBf16(Least(Most(high, -kMaxBf16), kMaxBf16))} << 16;
#endif
}

KVSTOW_GPU Words FloatsToRaw(const float* x, bool bf16) {
  Words words;
  if (bf16) {
    for (uint32_t i = 0; i < 4; ++i) words.word[i] = FloatsToBf16(x[2 * i], x[2 * i + 1]);
  } else {
    for (uint32_t i = 0; i < 4; ++i) words.word[i] = FloatsToHalves(x[2 * i], x[2 * i + 1]);
  }
  return words;
}

// a + sign * b, where `sign` is 1 or -1: one rounding, as of a + b and a - b.
KVSTOW_GPU float SignedSum(float a, float sign, float b) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(sign, b, a);
#else
  return a + sign * b;
#endif
}

// sum + x * x in F64, where the product has no error.
KVSTOW_GPU double PlusSquare(double sum, float x) {
#ifdef __CUDA_ARCH__
  return __fma_rn(double{x}, double{x}, sum);
#else
  return sum + double{x} * double{x};
#endif
}

// Bit j of `signs`: raw value j changes its sign. Those of values 2 i and 2 i + 1 lie in bits 15
// and 31 of word i.
KVSTOW_GPU void FlipSigns(uint8_t signs, Words* raw) {
  const uint32_t spread = signs | uint32_t{signs} << 15;  // bits 2 i and 2 i + 16 for word i
  KVSTOW_UNROLL
  for (uint32_t i = 0; i < 4; ++i) raw->word[i] ^= spread << (15 - 2 * i) & 0x80008000u;
}

// Bit j of `signs`: x[j] changes its sign.
KVSTOW_GPU void FlipSigns(uint8_t signs, float* x) {
  for (uint32_t j = 0; j < kOctet; ++j) {
    x[j] = std::bit_cast<float>(std::bit_cast<uint32_t>(x[j]) ^
                                (uint32_t{signs} << (31 - j) & 0x80000000u));
  }
}

// The stages of a Hadamard transform of `radix` values with strides 1, 2, .. radix / 2.
KVSTOW_GPU void Butterflies(uint32_t radix, float* x) {
  KVSTOW_UNROLL
  for (uint32_t stride = 1; stride < kOctet; stride *= 2) {
    if (stride >= radix) break;
    KVSTOW_UNROLL
    for (uint32_t i = 0; i < kOctet; ++i) {
      if ((i & stride) != 0 || i >= radix) continue;
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

// The same where the place is aligned to `bytes`, if those are a power of two.
KVSTOW_GPU void StoreAligned(uint64_t word, uint32_t bytes, uint8_t* to) {
  if (bytes == 8) {
    *reinterpret_cast<uint64_t*>(to) = word;
  } else if (bytes == 4) {
    *reinterpret_cast<uint32_t*>(to) = static_cast<uint32_t>(word);
  } else if (bytes == 2) {
    *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(word);
  } else {
    KVSTOW_NO_UNROLL
    for (uint32_t i = 0; i < bytes; ++i) to[i] = static_cast<uint8_t>(word >> (8 * i));
  }
}
KVSTOW_GPU uint64_t LoadAligned(const uint8_t* from, uint32_t bytes) {
  if (bytes == 8) return *reinterpret_cast<const uint64_t*>(from);
  if (bytes == 4) return *reinterpret_cast<const uint32_t*>(from);
  if (bytes == 2) return *reinterpret_cast<const uint16_t*>(from);
  uint64_t word = 0;
  KVSTOW_NO_UNROLL
  for (uint32_t i = 0; i < bytes; ++i) word |= static_cast<uint64_t>(from[i]) << (8 * i);
  return word;
}
// One fp16 at a place that is aligned to it.
KVSTOW_GPU uint16_t LoadHalf(const uint8_t* from) {
  return *reinterpret_cast<const uint16_t*>(from);
}
KVSTOW_GPU void StoreHalf(uint16_t half, uint8_t* to) { *reinterpret_cast<uint16_t*>(to) = half; }

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_OCTET_CUH_
