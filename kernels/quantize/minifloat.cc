#include "kernels/quantize/minifloat.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/status_macros.h"
#include "kernels/convert.h"
#include "kernels/quantize/magnitude.h"

namespace kvstow {
namespace {

class Minifloat final : public Quantizer {
 public:
  uint32_t levels() const override { return 1; }
  size_t LevelBytes(const SlabShape& shape, uint32_t) const override {
    return 2 * shape.vectors() + shape.values();
  }

  bool Encode(const SlabShape& shape, const float* values,
              std::span<uint8_t* const> bodies) const override {
    std::vector<float> tops(shape.vectors());
    if (!VectorTops(values, tops.size(), shape.dim, tops.data())) return false;
    StoreHalves(tops.data(), tops.size(), bodies[0]);
    MinifloatEncode(values, tops.size(), shape.dim, tops.data(), bodies[0] + 2 * tops.size());
    return true;
  }

  bool Decode(const SlabShape& shape, std::span<const uint8_t* const> bodies,
              float* values) const override {
    std::vector<float> tops(shape.vectors());
    if (!LoadHalves(bodies[0], tops.size(), tops.data())) return false;
    const uint8_t* const codes = bodies[0] + 2 * tops.size();
    return MinifloatDecode(codes, tops.size(), shape.dim, tops.data(), values);
  }
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

void MinifloatEncodeReference(const float* values, size_t count, size_t dim, const float* tops,
                              uint8_t* codes) {
  for (size_t v = 0; v < count; ++v) {
    const float scale = tops[v] > 0 ? kMaxE4M3 / tops[v] : 0.0f;
    for (size_t i = 0; i < dim; ++i) *codes++ = FloatToE4M3(*values++ * scale);
  }
}

bool MinifloatDecodeReference(const uint8_t* codes, size_t count, size_t dim, const float* tops,
                              float* values) {
  bool ok = true;
  for (size_t v = 0; v < count; ++v) {
    const float scale = tops[v] / kMaxE4M3;
    for (size_t i = 0; i < dim; ++i, ++codes) {
      ok &= (*codes & 0x7f) != 0x7f;
      *values++ = E4M3ToFloat(*codes) * scale;
    }
  }
  return ok;
}

absl::StatusOr<std::unique_ptr<Quantizer>> MakeMinifloat(const OpArguments& arguments) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"format"}));
  KVSTOW_RETURN_IF_ERROR(arguments.Word("format", {"e4m3"}).status());
  return std::make_unique<Minifloat>();
}

}  // namespace kvstow
