#include "kernels/quantize/minifloat.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "base/status_macros.h"
#include "kernels/convert.h"
#include "kernels/half.h"
#include "kernels/quantize/magnitude.h"

namespace kvstow {
namespace {

constexpr float kMaxE4M3 = 448.0f;
constexpr uint8_t kMagnitude = 0x7f;  // the NaN code, and the mask of all but the sign

bool IsNan(uint8_t code) { return (code & kMagnitude) == kMagnitude; }

std::array<float, 256> DecodeTable() {
  std::array<float, 256> table;
  for (size_t code = 0; code < table.size(); ++code) {
    table[code] = IsNan(static_cast<uint8_t>(code)) ? 0 : E4M3ToFloat(static_cast<uint8_t>(code));
  }
  return table;
}

class Minifloat final : public Quantizer {
 public:
  Minifloat() : table_(DecodeTable()) {}

  uint32_t levels() const override { return 1; }
  size_t LevelBytes(const SlabShape& shape, uint32_t) const override {
    return 2 * shape.vectors() + shape.values();
  }

  bool Encode(const SlabShape& shape, const float* values,
              std::span<uint8_t* const> bodies) const override {
    std::vector<float> tops(shape.vectors());
    uint8_t* codes = bodies[0] + 2 * shape.vectors();
    for (float& top : tops) {
      const uint16_t half = FloatToHalf(LargestMagnitude(values, shape.dim));
      if (!IsFiniteHalf(half)) return false;
      top = HalfToFloat(half);
      const float scale = top > 0 ? kMaxE4M3 / top : 0.0f;
      for (uint32_t c = 0; c < shape.dim; ++c) codes[c] = FloatToE4M3(values[c] * scale);
      values += shape.dim;
      codes += shape.dim;
    }
    StoreHalves(tops.data(), tops.size(), bodies[0]);
    return true;
  }

  bool Decode(const SlabShape& shape, std::span<const uint8_t* const> bodies,
              float* values) const override {
    std::vector<float> tops(shape.vectors());
    if (!LoadHalves(bodies[0], tops.size(), tops.data())) return false;
    const uint8_t* codes = bodies[0] + 2 * shape.vectors();
    if (std::any_of(codes, codes + shape.values(), IsNan)) return false;
    for (const float top : tops) {
      const float scale = top / kMaxE4M3;
      for (uint32_t c = 0; c < shape.dim; ++c) values[c] = table_[codes[c]] * scale;
      values += shape.dim;
      codes += shape.dim;
    }
    return true;
  }

 private:
  const std::array<float, 256> table_;
};

}  // namespace

uint8_t FloatToE4M3(float value) {
  const uint32_t all = std::bit_cast<uint32_t>(value);
  const uint32_t sign = all >> 24 & 0x80;
  const float magnitude = std::min(std::bit_cast<float>(all & 0x7fffffff), kMaxE4M3);
  // Denormals are multiples of 2^-9: adding 2^23 rounds to a whole number of them.
  const uint32_t denormal = std::bit_cast<uint32_t>(magnitude * 512.0f + 0x1p23f) & 0xff;
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  const uint32_t normal = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - ((127 - 7) << 3);
  return static_cast<uint8_t>(sign | (magnitude < 0x1p-6f ? denormal : normal));
}

float E4M3ToFloat(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

absl::StatusOr<std::unique_ptr<Quantizer>> MakeMinifloat(const OpArguments& arguments) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"format"}));
  KVSTOW_RETURN_IF_ERROR(arguments.Word("format", {"e4m3"}).status());
  return std::make_unique<Minifloat>();
}

}  // namespace kvstow
