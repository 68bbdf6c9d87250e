// One value between F32 and the OCP 8-bit floating point format E4M3 ("FN": bias 7, no infinities,
// largest value 448), by bits: the reference that every faster way equals.
//
// Free functions, thread-safe; constexpr, as those of kernels/page/half.h are.
#ifndef KVSTOW_KERNELS_QUANTIZE_E4M3_H_
#define KVSTOW_KERNELS_QUANTIZE_E4M3_H_

#include <algorithm>
#include <bit>
#include <cstdint>

namespace kvstow {

inline constexpr float kMaxE4M3 = 448.0f;

// To nearest even; saturates, never makes the NaN code. `value` is finite.
constexpr uint8_t FloatToE4M3(float value) {
  const uint32_t all = std::bit_cast<uint32_t>(value);
  const uint32_t sign = all >> 24 & 0x80;
  const float magnitude = std::min(std::bit_cast<float>(all & 0x7fffffff), 448.0f);
  // Denormals are multiples of 2^-9: adding 2^23 rounds to a whole number of them.
  const uint32_t denormal = std::bit_cast<uint32_t>(magnitude * 512.0f + 0x1p23f) & 0xff;
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  const uint32_t normal = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - ((127 - 7) << 3);
  return static_cast<uint8_t>(sign | (magnitude < 0x1p-6f ? denormal : normal));
}

// NaN codes (0x7f, 0xff) give 480, which no value has.
constexpr float E4M3ToFloat(uint8_t code) {
  const uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
  const float denormal = static_cast<float>(mantissa) * 0x1p-9f;
  const uint32_t normal = (exponent + (127 - 7)) << 23 | mantissa << 20;
  const uint32_t bits = exponent == 0 ? std::bit_cast<uint32_t>(denormal) : normal;
  return std::bit_cast<float>(bits | uint32_t{code & 0x80u} << 24);
}

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_E4M3_H_
