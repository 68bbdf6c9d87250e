// Converts one value between F32 and the 16-bit types, by bits. Every faster way equals this
// reference.
//
// Rounds to nearest, ties to even, denormals included. Free functions, thread-safe. They hold for
// the default floating-point environment (no flush to zero). They are constexpr, so GPU code may
// call them as well (nvcc --expt-relaxed-constexpr).
#ifndef KVSTOW_KERNELS_PAGE_HALF_H_
#define KVSTOW_KERNELS_PAGE_HALF_H_

#include <bit>
#include <cstdint>

namespace kvstow {

inline constexpr float kMaxHalf = 65504.0f;
inline constexpr float kMaxBf16 = 0x1.fep127f;

constexpr float HalfToFloat(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t magnitude = half & 0x7fffu;
  // A multiplication moves the exponent. It is exact for denormals too.
  const float finite = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const uint32_t bits = magnitude >= 0x7c00 ? (0x7f800000u | (magnitude & 0x3ff) << 13)
                                            : std::bit_cast<uint32_t>(finite);
  return std::bit_cast<float>(sign | bits);
}

// Overflow gives Inf: callers check, or clamp to kMaxHalf first.
constexpr uint16_t FloatToHalf(float value) {
  const uint32_t all = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((all >> 16) & 0x8000);
  uint32_t x = all & 0x7fffffff;
  if (x > 0x7f800000) return sign | 0x7e00;   // NaN
  if (x >= 0x47800000) return sign | 0x7c00;  // 65536 and more
  if (x < 0x38800000) {
    // Below 2^-14: adding 0.5, whose last place is 2^-24, rounds to a denormal half.
    const float rounded = std::bit_cast<float>(x) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(rounded) - 0x3f000000));
  }
  x += 0xfff + ((x >> 13) & 1);
  return static_cast<uint16_t>(sign | ((x - 0x38000000) >> 13));
}

constexpr bool IsFiniteHalf(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

constexpr float Bf16ToFloat(uint16_t bf16) { return std::bit_cast<float>(uint32_t{bf16} << 16); }

// Overflow gives Inf; NaN stays NaN.
constexpr uint16_t FloatToBf16(float value) {
  const uint32_t x = std::bit_cast<uint32_t>(value);
  if ((x & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((x >> 16) | 0x40);
  return static_cast<uint16_t>((x + 0x7fff + ((x >> 16) & 1)) >> 16);
}

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_PAGE_HALF_H_
