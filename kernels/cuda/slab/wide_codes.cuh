// Codes as strips have them: *wide* codes. A wide code is the float 2^23 + code, by its bits, where
// the quantizer rounds by adding 2^23 (affine, levels), and the code itself elsewhere. So neither
// rounding nor the way back costs an instruction on integers.
//
// The results are those of quantize.cuh, bit for bit.
#ifndef KVSTOW_KERNELS_CUDA_SLAB_WIDE_CODES_CUH_
#define KVSTOW_KERNELS_CUDA_SLAB_WIDE_CODES_CUH_

#include <cmath>

#include "kernels/cuda/slab/quantize.cuh"

namespace kvstow::gpu {

inline constexpr uint32_t kWide = 0x4b000000;  // 2^23
constexpr bool IsWide(Kind kind) { return kind == Kind::kAffine || kind == Kind::kLevels; }
constexpr uint32_t WideBase(Kind kind) { return IsWide(kind) ? kWide : 0; }

// 2^23 + the whole part of x, which is within 0 and 255.
KVSTOW_GPU uint32_t FloorSmall(float x) {
#ifdef __CUDA_ARCH__
  return std::bit_cast<uint32_t>(__fadd_rd(x, 0x1p23f));
#else
  return std::bit_cast<uint32_t>(std::floor(x) + 0x1p23f);
#endif
}
KVSTOW_GPU float OfWide(uint32_t wide) { return std::bit_cast<float>(wide) - 0x1p23f; }

// How many of 15 middles lie below u. All lanes read the same three of them, so that two reads are
// left that depend on u.
KVSTOW_GPU uint32_t CodeOf16(float u, const float* middles) {
  const bool upper = middles[7] < u;
  uint32_t code = upper ? 8 : 0;
  code += (upper ? middles[11] : middles[3]) < u ? 4 : 0;
  code += middles[code + 1] < u ? 2 : 0;
  code += middles[code] < u ? 1 : 0;
  return code;
}

template <Kind kind>
KVSTOW_GPU uint32_t WideCodeOf(float x, const Scale& scale, const float* table, uint32_t bits) {
  // A page with NaN is refused, but until then its codes index the tables: Most(0, NaN) is 0.
  const float top = static_cast<float>((1u << bits) - 1);
  if (kind == Kind::kAffine) {
    const float u = (x - scale.minimum) * scale.inward;
    return std::bit_cast<uint32_t>(Least(Most(0.0f, u), top) + 0x1p23f);
  }
  if (kind == Kind::kLevels) {
    const float u = x * scale.inward + static_cast<float>(1u << (bits - 1));
    return FloorSmall(Least(Most(0.0f, u), top));
  }
  if (kind == Kind::kCodebook && bits == 4) return CodeOf16(x * scale.inward, table);
  return CodeOf<kind>(x, scale, table, bits);
}

// The entry of LevelCentroids(bits) for more than 4 bits: all but the outermost are the middles of
// their cells.
KVSTOW_GPU float WideCentroid(uint32_t wide, const float* table, uint32_t bits) {
  const float half = static_cast<float>(1u << (bits - 1));
  const float middle = OfWide(wide) + (0.5f - half);
  const float outermost = std::copysign(table[kOutermost + bits - 5], middle);
  return std::abs(middle) > half - 1 ? outermost : middle * (1.0f / half);
}

// As E4M3ToFloat: a float with the same exponent and mantissa is 2^120 times too small.
KVSTOW_GPU float FloatOfE4M3(uint32_t code) {
  return std::bit_cast<float>((code << 24 & 0x80000000u) | (code << 20 & 0x07f00000u)) * 0x1p120f;
}

// The value of a wide code of which the leading `bits` are there.
template <Kind kind>
KVSTOW_GPU float WideValueOf(uint32_t wide, const Scale& scale, const float* table, uint32_t bits) {
  if (kind == Kind::kAffine) return OfWide(wide) * scale.outward + scale.minimum;
  if (kind == Kind::kMinifloat) return FloatOfE4M3(wide) * scale.outward;
  if (kind == Kind::kLevels && bits > 4) return WideCentroid(wide, table, bits) * scale.outward;
  return ValueOf<kind>(wide - WideBase(kind), scale, table, bits);
}

// The lowest bytes of four words.
KVSTOW_GPU uint32_t LowBytes(const uint32_t* words) {
#ifdef __CUDA_ARCH__
  return __byte_perm(__byte_perm(words[0], words[1], 0x0040),
                     __byte_perm(words[2], words[3], 0x0040), 0x5410);
#else
  return (words[0] & 0xff) | (words[1] & 0xff) << 8 | (words[2] & 0xff) << 16 | words[3] << 24;
#endif
}
// Byte j of a word in the place of the lowest of `base`, whose lowest is 0.
KVSTOW_GPU uint32_t ByteOf(uint32_t word, uint32_t j, uint32_t base) {
#ifdef __CUDA_ARCH__
  return __byte_perm(word, base, 0x7650 | j);
#else
  return (word >> (8 * j) & 0xff) | base;
#endif
}

// Packs as Pack does. Whatever a wide code has above its `bits` is left out.
KVSTOW_GPU uint64_t PackWide(const uint32_t* wide, uint32_t bits) {
  if (bits == 8) return LowBytes(wide) | uint64_t{LowBytes(wide + 4)} << 32;
  const uint32_t mask = (1u << bits) - 1;
  if (bits <= 4) {
    uint32_t word = 0;
    KVSTOW_UNROLL
    for (uint32_t j = 0; j < kOctet; ++j) word |= (wide[j] & mask) << (bits * j);
    return word;
  }
  uint64_t word = 0;
  KVSTOW_UNROLL
  for (uint32_t j = 0; j < kOctet; ++j) word |= uint64_t{wide[j] & mask} << (bits * j);
  return word;
}

KVSTOW_GPU void UnpackWide(uint64_t word, uint32_t bits, uint32_t base, uint32_t* wide) {
  const uint32_t low = static_cast<uint32_t>(word), mask = (1u << bits) - 1;
  if (bits == 8) {
    const uint32_t high = static_cast<uint32_t>(word >> 32);
    KVSTOW_UNROLL
    for (uint32_t j = 0; j < kOctet; ++j) wide[j] = ByteOf(j < 4 ? low : high, j % 4, base);
  } else if (bits <= 4) {
    KVSTOW_UNROLL
    for (uint32_t j = 0; j < kOctet; ++j) wide[j] = (low >> (bits * j) & mask) | base;
  } else {
    KVSTOW_UNROLL
    for (uint32_t j = 0; j < kOctet; ++j) {
      wide[j] = (static_cast<uint32_t>(word >> (bits * j)) & mask) | base;
    }
  }
}

// Calls f(bits), with the powers of two as constants.
template <typename F>
KVSTOW_GPU void WithWideBits(uint32_t bits, const F& f) {
  if (bits == 8) return f(std::integral_constant<uint32_t, 8>());
  if (bits == 4) return f(std::integral_constant<uint32_t, 4>());
  if (bits == 2) return f(std::integral_constant<uint32_t, 2>());
  f(bits);
}

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_SLAB_WIDE_CODES_CUH_
