// The scale of a block in each format, for the scalar reference and for all SIMD targets: the same
// formulas, so that there is one of each.
//
// A struct a format. Put writes the scale of a block whose value of largest magnitude is `top`,
// and returns what to multiply values by before they are rounded to codes; Get reads it and returns
// what to multiply codes by, or false when no encoder wrote it. `tensor` is t of nvfp4. Codes begin
// kScaleBytes after the scale. Thread-safe.
#ifndef KVSTOW_KERNELS_QUANTIZE_BLOCK_SCALES_H_
#define KVSTOW_KERNELS_QUANTIZE_BLOCK_SCALES_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/page/half.h"
#include "kernels/quantize/e4m3.h"

namespace kvstow {

inline constexpr float kMaxE2M1 = 6.0f;

// One value; saturates at 6. Code bit 3 is the sign.
inline uint8_t FloatToE2M1(float value) {
  const float a = std::abs(value);
  // Half-way values go to the even code.
  const int code =
      (a > .25f) + (a >= .75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  return static_cast<uint8_t>(code | (std::signbit(value) ? 8 : 0));
}

inline float E2M1ToFloat(uint8_t code) {
  constexpr float kMagnitudes[] = {0, .5f, 1, 1.5f, 2, 3, 4, kMaxE2M1};
  const float magnitude = kMagnitudes[code & 7];
  return code & 8 ? -magnitude : magnitude;
}

struct HalfScale {
  static constexpr size_t kScaleBytes = 2;

  static float PutHalf(float d, uint8_t* block) {
    const uint16_t half = FloatToHalf(d);
    std::memcpy(block, &half, sizeof(half));
    return (half & 0x7fff) == 0 ? 0.0f : 1.0f / d;
  }
  static bool Get(const uint8_t* block, float, float* scale) {
    uint16_t half = 0;
    std::memcpy(&half, block, sizeof(half));
    *scale = HalfToFloat(half);
    return IsFiniteHalf(half);
  }
};

// The power of two that brings `top` to the largest exponent of a minifloat whose largest value is
// kMost, as E8M0.
template <int kMost>
struct PowerScale {
  static constexpr size_t kScaleBytes = 1;
  static constexpr int kTopExponent = std::bit_width(static_cast<unsigned>(kMost)) - 1;

  static float Put(float top, float, uint8_t* block) {
    // Both exponents have a bias of 127. The least scale is 2^-127.
    const int exponent = static_cast<int>(std::bit_cast<uint32_t>(std::abs(top)) >> 23);
    block[0] = static_cast<uint8_t>(std::max(exponent - kTopExponent, 0));
    return std::bit_cast<float>((254u - block[0]) << 23);
  }
  static bool Get(const uint8_t* block, float, float* scale) {
    *scale = block[0] == 0 ? 0x1p-127f : std::bit_cast<float>(uint32_t{block[0]} << 23);
    return std::isfinite(static_cast<float>(kMost) * *scale);
  }
};

struct Q8Format : HalfScale {
  static constexpr size_t kValues = 32, kBytes = 34;

  static float Put(float top, float, uint8_t* block) {
    return PutHalf(std::abs(top) / 127.0f, block);
  }
};

struct Q4Format : HalfScale {
  static constexpr size_t kValues = 32, kBytes = 18;

  static float Put(float top, float, uint8_t* block) { return PutHalf(top / -8.0f, block); }
};

struct Nv4Format {
  static constexpr size_t kValues = 16, kBytes = 9, kScaleBytes = 1;

  static float Put(float top, float tensor, uint8_t* block) {
    block[0] = tensor > 0 ? FloatToE4M3(std::abs(top) / kMaxE2M1 / tensor) : 0;
    const float scale = E4M3ToFloat(block[0]) * tensor;
    return scale > 0 ? 1.0f / scale : 0.0f;
  }
  static bool Get(const uint8_t* block, float tensor, float* scale) {
    *scale = E4M3ToFloat(block[0] & 0x7f) * tensor;
    return block[0] < 0x7f;  // scales have no sign
  }
};

struct Mx4Format : PowerScale<6> {
  static constexpr size_t kValues = 32, kBytes = 17;
};

struct Mx8Format : PowerScale<448> {
  static constexpr size_t kValues = 32, kBytes = 33;
};

// The place of the first value of largest magnitude.
inline size_t LargestAt(const float* x, size_t count) {
  size_t at = 0;
  for (size_t i = 1; i < count; ++i) {
    if (std::abs(x[i]) > std::abs(x[at])) at = i;
  }
  return at;
}

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_BLOCK_SCALES_H_
