#include "kernels/quantize/block.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/status_macros.h"
#include "kernels/half.h"
#include "kernels/quantize/minifloat.h"

namespace kvstow {
namespace {

constexpr size_t kMaxBlock = 32;
constexpr float kMaxE2M1 = 6.0f;
constexpr int kE8M0Bias = 127;
constexpr uint8_t kE8M0NaN = 255;

// The place of the first value of largest magnitude.
size_t Largest(const float* x, size_t count) {
  size_t at = 0;
  for (size_t i = 1; i < count; ++i) {
    if (std::abs(x[i]) > std::abs(x[at])) at = i;
  }
  return at;
}

// Writes fp16(d), returns what to multiply values by.
float StoreScale(float d, uint8_t* out) {
  const uint16_t half = FloatToHalf(d);
  std::memcpy(out, &half, sizeof(half));
  return (half & 0x7fff) == 0 ? 0.0f : 1.0f / d;
}

bool LoadScale(const uint8_t* block, float* d) {
  uint16_t half = 0;
  std::memcpy(&half, block, sizeof(half));
  *d = HalfToFloat(half);
  return IsFiniteHalf(half);
}

void EncodeQ8(const float* x, float, uint8_t* block) {
  const float inverse = StoreScale(std::abs(x[Largest(x, 32)]) / 127.0f, block);
  for (size_t i = 0; i < 32; ++i) {
    block[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(std::round(x[i] * inverse)));
  }
}

bool DecodeQ8(const uint8_t* block, float, float* x) {
  float d = 0;
  const bool ok = LoadScale(block, &d);
  for (size_t i = 0; i < 32; ++i) x[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * d;
  return ok;
}

void EncodeQ4(const float* x, float, uint8_t* block) {
  const float inverse = StoreScale(x[Largest(x, 32)] / -8.0f, block);
  const auto code = [&](float value) {
    return static_cast<uint8_t>(std::min(15, static_cast<int>(value * inverse + 8.5f)));
  };
  for (size_t i = 0; i < 16; ++i) {
    block[2 + i] = static_cast<uint8_t>(code(x[i]) | code(x[i + 16]) << 4);
  }
}

bool DecodeQ4(const uint8_t* block, float, float* x) {
  float d = 0;
  const bool ok = LoadScale(block, &d);
  for (size_t i = 0; i < 16; ++i) {
    x[i] = static_cast<float>((block[2 + i] & 15) - 8) * d;
    x[i + 16] = static_cast<float>((block[2 + i] >> 4) - 8) * d;
  }
  return ok;
}

void StoreE2M1(const float* x, size_t count, float scale, uint8_t* out) {
  for (size_t i = 0; i < count; i += 2) {
    *out++ = static_cast<uint8_t>(FloatToE2M1(x[i] * scale) | FloatToE2M1(x[i + 1] * scale) << 4);
  }
}

void LoadE2M1(const uint8_t* codes, size_t count, float scale, float* x) {
  for (size_t i = 0; i < count; i += 2, ++codes) {
    x[i] = E2M1ToFloat(*codes & 15) * scale;
    x[i + 1] = E2M1ToFloat(*codes >> 4) * scale;
  }
}

void EncodeNv(const float* x, float tensor, uint8_t* block) {
  const float top = std::abs(x[Largest(x, 16)]);
  block[0] = tensor > 0 ? FloatToE4M3(top / kMaxE2M1 / tensor) : 0;
  const float scale = E4M3ToFloat(block[0]) * tensor;
  StoreE2M1(x, 16, scale > 0 ? 1.0f / scale : 0.0f, block + 1);
}

bool DecodeNv(const uint8_t* block, float tensor, float* x) {
  LoadE2M1(block + 1, 16, E4M3ToFloat(block[0] & 0x7f) * tensor, x);
  return block[0] < 0x7f;  // scales have no sign
}

// The power of two that brings a block's largest value to the largest of a minifloat whose largest
// exponent is `top`.
int SharedExponent(const float* x, int top) {
  const float largest = std::abs(x[Largest(x, 32)]);
  if (largest == 0) return -kE8M0Bias;
  return std::max(std::ilogb(largest) - top, -kE8M0Bias);
}

void EncodeMx4(const float* x, float, uint8_t* block) {
  const int exponent = SharedExponent(x, 2);
  block[0] = static_cast<uint8_t>(exponent + kE8M0Bias);
  StoreE2M1(x, 32, std::ldexp(1.0f, -exponent), block + 1);
}

bool DecodeMx4(const uint8_t* block, float, float* x) {
  LoadE2M1(block + 1, 32, std::ldexp(1.0f, block[0] - kE8M0Bias), x);
  return block[0] != kE8M0NaN && std::isfinite(kMaxE2M1 * std::ldexp(1.0f, block[0] - kE8M0Bias));
}

void EncodeMx8(const float* x, float, uint8_t* block) {
  const int exponent = SharedExponent(x, 8);
  block[0] = static_cast<uint8_t>(exponent + kE8M0Bias);
  const float scale = std::ldexp(1.0f, -exponent);
  for (size_t i = 0; i < 32; ++i) block[1 + i] = FloatToE4M3(x[i] * scale);
}

bool DecodeMx8(const uint8_t* block, float, float* x) {
  const float scale = std::ldexp(1.0f, block[0] - kE8M0Bias);
  bool ok = std::isfinite(kMaxE4M3 * scale);
  for (size_t i = 0; i < 32; ++i) {
    ok &= (block[1 + i] & 0x7f) != 0x7f;
    x[i] = E4M3ToFloat(block[1 + i]) * scale;
  }
  return ok && block[0] != kE8M0NaN;
}

struct BlockFormat {
  absl::string_view name;
  size_t values, bytes;
  bool tensor_scale;
  void (*encode)(const float* x, float tensor, uint8_t* block);
  bool (*decode)(const uint8_t* block, float tensor, float* x);
};

constexpr BlockFormat kFormats[] = {
    {"q8_0", 32, 34, false, EncodeQ8, DecodeQ8},    {"q4_0", 32, 18, false, EncodeQ4, DecodeQ4},
    {"nvfp4", 16, 9, true, EncodeNv, DecodeNv},     {"mxfp4", 32, 17, false, EncodeMx4, DecodeMx4},
    {"mxfp8", 32, 33, false, EncodeMx8, DecodeMx8},
};

class Block final : public Quantizer {
 public:
  explicit Block(const BlockFormat& format) : format_(format) {}

  uint32_t levels() const override { return 1; }

  size_t LevelBytes(const SlabShape& shape, uint32_t) const override {
    return (format_.tensor_scale ? sizeof(float) : 0) + shape.vectors() * VectorBytes(shape);
  }
  std::vector<BodyPart> Parts(const SlabShape& shape, uint32_t) const override {
    const uint64_t a_vector = (shape.dim + format_.values - 1) / format_.values;
    const BodyPart blocks{8 * shape.heads * a_vector * format_.bytes};
    if (!format_.tensor_scale) return {blocks};
    return {{8 * sizeof(float), kAllTokens}, blocks};
  }

  // A scale of the tensor needs all of its values.
  uint32_t TileTokens(const SlabShape& shape) const override {
    return format_.tensor_scale ? shape.tokens : 1;
  }

  bool Encode(const SlabTile& tile, const float* values,
              std::span<uint8_t* const> bodies) const override {
    float top = 0;
    for (size_t i = 0; i < tile.values(); ++i) top = std::max(top, std::abs(values[i]));
    if (top > kMaxHalf) return false;
    uint8_t* out = bodies[0] + BlocksAt(tile);
    const float tensor = format_.tensor_scale ? top / (kMaxE4M3 * kMaxE2M1) : 0;
    if (format_.tensor_scale) {
      std::memcpy(bodies[0], &tensor, sizeof(tensor));
    }
    ForBlocks(tile.shape(), [&](size_t first, size_t count) {
      std::array<float, kMaxBlock> x{};
      std::copy_n(values + first, count, x.begin());
      format_.encode(x.data(), tensor, out);
      out += format_.bytes;
    });
    return true;
  }

  bool Decode(const SlabTile& tile, std::span<const uint8_t* const> bodies,
              float* values) const override {
    const uint8_t* in = bodies[0] + BlocksAt(tile);
    float tensor = 0;
    if (format_.tensor_scale) {
      std::memcpy(&tensor, bodies[0], sizeof(tensor));
      if (!(tensor >= 0) || !std::isfinite(tensor * kMaxE4M3 * kMaxE2M1)) return false;
    }
    bool ok = true;
    ForBlocks(tile.shape(), [&](size_t first, size_t count) {
      std::array<float, kMaxBlock> x;
      ok &= format_.decode(in, tensor, x.data());
      std::copy_n(x.begin(), count, values + first);
      in += format_.bytes;
    });
    return ok;
  }

 private:
  size_t VectorBytes(const SlabShape& shape) const {
    return (shape.dim + format_.values - 1) / format_.values * format_.bytes;
  }

  size_t BlocksAt(const SlabTile& tile) const {
    return (format_.tensor_scale ? sizeof(float) : 0) +
           tile.first_vector() * VectorBytes(tile.slab);
  }

  // Calls f(first value, how many) for all blocks.
  template <typename F>
  void ForBlocks(const SlabShape& shape, F f) const {
    for (size_t v = 0; v < shape.vectors(); ++v) {
      for (size_t begin = 0; begin < shape.dim; begin += format_.values) {
        f(v * shape.dim + begin, std::min(format_.values, shape.dim - begin));
      }
    }
  }

  const BlockFormat& format_;
};

}  // namespace

uint8_t FloatToE2M1(float value) {
  const float a = std::abs(value);
  // Half-way values go to the even code.
  const int code =
      (a > .25f) + (a >= .75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  return static_cast<uint8_t>(code | (std::signbit(value) ? 8 : 0));
}

float E2M1ToFloat(uint8_t code) {
  constexpr float kMagnitudes[] = {0, .5f, 1, 1.5f, 2, 3, 4, kMaxE2M1};
  const float magnitude = kMagnitudes[code & 7];
  return code & 8 ? -magnitude : magnitude;
}

absl::StatusOr<std::unique_ptr<Quantizer>> MakeBlock(const OpArguments& arguments) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"format"}));
  KVSTOW_ASSIGN_OR_RETURN(
      const size_t format,
      arguments.Word("format", {kFormats[0].name, kFormats[1].name, kFormats[2].name,
                                kFormats[3].name, kFormats[4].name}));
  return std::make_unique<Block>(kFormats[format]);
}

}  // namespace kvstow
