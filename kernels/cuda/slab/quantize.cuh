// The quantizers, value by value: scales, codes and values of a group, and eight codes as bytes.
// See octet.cuh.
#ifndef KVSTOW_KERNELS_CUDA_SLAB_QUANTIZE_CUH_
#define KVSTOW_KERNELS_CUDA_SLAB_QUANTIZE_CUH_

#include <algorithm>
#include <bit>
#include <type_traits>

#include "kernels/cuda/octet.cuh"
#include "kernels/page/half.h"
#include "kernels/quantize/e4m3.h"

namespace kvstow::gpu {

// The scale of a group of values: code = f(x * inward), x' = g(code) * outward + minimum.
struct Scale {
  float inward, outward, minimum;
};

// fp16 side information of a group, as the body holds it.
struct Halves {
  uint16_t first;    // the step, top or length
  uint16_t minimum;  // affine only
};
KVSTOW_GPU bool Finite(Halves h) { return IsFiniteHalf(h.first) && IsFiniteHalf(h.minimum); }

KVSTOW_GPU Halves AffineHalves(float low, float high, uint32_t bits) {
  const float top = static_cast<float>((1u << bits) - 1);
  const uint16_t m = HalfOfFloat(low + 0.0f);
  const float range = std::max(high - FloatOfHalf(m), 0.0f) + 0.0f;
  return {HalfOfFloat(range / top), m};
}

template <Kind kind>
KVSTOW_GPU Scale ScaleOf(Halves h, const SlabPart& part, uint32_t total_bits) {
  const float s = FloatOfHalf(h.first);
  switch (kind) {
    case Kind::kAffine:
      return {s > 0 ? 1.0f / s : 0.0f, s, FloatOfHalf(h.minimum)};
    case Kind::kCodebook:
      return {s > 0 ? part.root / s : 0.0f, s / part.root, 0};
    case Kind::kLevels:
      return {s > 0 ? static_cast<float>(1u << (total_bits - 1)) / s : 0.0f, s, 0};
    case Kind::kMinifloat:
      return {s > 0 ? kMaxE4M3 / s : 0.0f, s / kMaxE4M3, 0};
  }
  return {};
}

// The nearest whole number, ties to even, of x within 0 and 255: adding 2^23 rounds.
KVSTOW_GPU uint32_t RoundSmall(float x) { return std::bit_cast<uint32_t>(x + 0x1p23f) & 0xff; }
// The float of a code below 256, the same way back.
KVSTOW_GPU float SmallToFloat(uint32_t code) {
  return std::bit_cast<float>(0x4b000000u | code) - 0x1p23f;
}

// The code of x; `table` is part.table.
template <Kind kind>
KVSTOW_GPU uint32_t CodeOf(float x, const Scale& scale, const float* table, uint32_t bits) {
  switch (kind) {
    case Kind::kAffine: {
      const float top = static_cast<float>((1u << bits) - 1);
      return RoundSmall(Least(Most((x - scale.minimum) * scale.inward, 0.0f), top));
    }
    case Kind::kCodebook: {
      // How many middles lie below u.
      const float u = x * scale.inward;
      uint32_t code = 0;
      for (uint32_t step = 1u << (bits - 1); step > 0; step /= 2) {
        if (table[code + step - 1] < u) code += step;
      }
      return code;
    }
    case Kind::kLevels: {
      const int cell = static_cast<int>(x * scale.inward + static_cast<float>(1u << (bits - 1)));
      return static_cast<uint32_t>(std::min(std::max(cell, 0), (1 << bits) - 1));
    }
    case Kind::kMinifloat:
      return FloatToE4M3(x * scale.inward);
  }
  return 0;
}

// Entry `code` of LevelCentroids(bits).
KVSTOW_GPU float CentroidOf(uint32_t code, const float* table, uint32_t bits) {
  const uint32_t half = 1u << (bits - 1);
  const bool below = code < half;
  const uint32_t cell = below ? half - 1 - code : code - half;
  float c = table[bits <= 4 ? half - 1 + cell : kOutermost + bits - 5];
  if (bits > 4 && cell < half - 1) {
    c = (SmallToFloat(cell) + 0.5f) * (1.0f / static_cast<float>(half));
  }
  return below ? -c : c;
}

// The value of a code of which the leading `bits` are there.
template <Kind kind>
KVSTOW_GPU float ValueOf(uint32_t code, const Scale& scale, const float* table, uint32_t bits) {
  switch (kind) {
    case Kind::kAffine:
      return SmallToFloat(code) * scale.outward + scale.minimum;
    case Kind::kCodebook:
      return table[kEntries + code] * scale.outward;
    case Kind::kLevels:
      return CentroidOf(code, table, bits) * scale.outward;
    case Kind::kMinifloat:
      return E4M3ToFloat(static_cast<uint8_t>(code)) * scale.outward;
  }
  return 0;
}

// Eight codes below 2^bits are `bits` bytes, the first code in the lowest bits.
KVSTOW_GPU uint64_t Pack(const uint32_t* codes, uint32_t bits) {
  uint64_t word = 0;
  for (uint32_t j = 0; j < kOctet; ++j) word |= uint64_t{codes[j]} << (bits * j);
  return word;
}
KVSTOW_GPU void Unpack(uint64_t word, uint32_t bits, uint32_t* codes) {
  const uint32_t mask = (1u << bits) - 1;
  for (uint32_t j = 0; j < kOctet; ++j) {
    codes[j] = static_cast<uint32_t>(word >> (bits * j)) & mask;
  }
}

// Calls f(bits), with 8 and 4 as constants: the usual ones get code of their own.
template <typename F>
KVSTOW_GPU void WithBits(uint32_t bits, const F& f) {
  if (bits == 8) return f(std::integral_constant<uint32_t, 8>());
  if (bits == 4) return f(std::integral_constant<uint32_t, 4>());
  f(bits);
}

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_SLAB_QUANTIZE_CUH_
