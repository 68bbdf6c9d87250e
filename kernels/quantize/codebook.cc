#include "kernels/quantize/codebook.h"

#include <array>
#include <cmath>

#include "base/status_macros.h"
#include "kernels/entropy/bit_pack.h"
#include "kernels/page/convert.h"
#include "kernels/page/half.h"
#include "kernels/quantize/loops.h"
#include "kernels/quantize/tile_array.h"

namespace kvstow {
namespace {

constexpr uint32_t kMaxBits = 4;

// The positive entries for 1, 2, 3 and 4 bits: those of b bits begin at 2^(b-1) - 1.
using PositiveEntries = std::array<float, 15>;
constexpr PositiveEntries kGaussian = {0.797885f,                                   //
                                       0.452780f, 1.510418f,                        //
                                       0.245094f, 0.756005f, 1.343909f, 2.151946f,  //
                                       0.128395f, 0.388048f, 0.656759f, 0.942340f,  //
                                       1.256231f, 1.618046f, 2.069017f, 2.732590f};
constexpr PositiveEntries kSphere64 = {0.801007f,                                   //
                                       0.452119f, 1.499975f,                        //
                                       0.243753f, 0.750658f, 1.329343f, 2.111311f,  //
                                       0.127352f, 0.384718f, 0.650494f, 0.931894f,  //
                                       1.239404f, 1.590849f, 2.023310f, 2.646370f};
constexpr PositiveEntries kSphere128 = {0.799444f,                                   //
                                        0.452453f, 1.505193f,                        //
                                        0.244425f, 0.753330f, 1.336599f, 2.131471f,  //
                                        0.127873f, 0.386381f, 0.653619f, 0.937097f,  //
                                        1.247770f, 1.604343f, 2.045925f, 2.688859f};

class Codebook final : public Quantizer {
 public:
  Codebook(uint32_t bits, bool corrected) : bits_(bits), corrected_(corrected) {}

  uint32_t levels() const override { return 1; }

  size_t LevelBytes(const SlabShape& shape, uint32_t) const override {
    return 2 * shape.vectors() + PackedBytes(shape.values(), bits_);
  }
  std::vector<BodyPart> Parts(const SlabShape& shape, uint32_t) const override {
    return {{uint64_t{16} * shape.heads}, {bits_ * (shape.values() / shape.tokens)}};
  }

  uint32_t TileTokens(const SlabShape&) const override { return 1; }

  bool Encode(const SlabTile& tile, const float* values,
              std::span<uint8_t* const> bodies) const override {
    const SlabShape& shape = tile.slab;
    const std::vector<float> entries = LloydMax(bits_, shape.dim);
    const float root = std::sqrt(static_cast<float>(shape.dim));
    FloatArray lengths(tile.vectors());
    CodeArray codes(tile.values());
    for (size_t v = 0; v < lengths.size(); ++v) {
      const float* const x = values + v * shape.dim;
      uint8_t* const code = codes.data() + v * shape.dim;
      const double length = std::sqrt(CodebookLoops::Best().squared_length(x, shape.dim));
      uint16_t stored = FloatToHalf(static_cast<float>(length));
      if (!IsFiniteHalf(stored)) return false;
      const float r = HalfToFloat(stored);
      CodebookLoops::Best().nearest(entries, x, shape.dim, r > 0 ? root / r : 0.0f, code);
      if (corrected_ && r > 0) {
        stored = FloatToHalf(static_cast<float>(length * root / CodedLength(entries, code, shape)));
        if (!IsFiniteHalf(stored)) return false;
      }
      lengths[v] = HalfToFloat(stored);
    }
    StoreHalves(lengths.data(), lengths.size(), bodies[0] + 2 * tile.first_vector());
    PackBits(codes.data(), codes.size(), bits_, bodies[0] + CodesAt(tile));
    return true;
  }

  bool Decode(const SlabTile& tile, std::span<const uint8_t* const> bodies,
              float* values) const override {
    const SlabShape& shape = tile.slab;
    const std::vector<float> entries = LloydMax(bits_, shape.dim);
    const float root = std::sqrt(static_cast<float>(shape.dim));
    FloatArray lengths(tile.vectors());
    if (!LoadHalves(bodies[0] + 2 * tile.first_vector(), lengths.size(), lengths.data())) {
      return false;
    }
    CodeArray codes(tile.values());
    UnpackBits(bodies[0] + CodesAt(tile), codes.size(), bits_, codes.data());
    const uint8_t* code = codes.data();
    for (const float length : lengths) {
      CodebookLoops::Best().scaled(entries, code, shape.dim, length / root, values);
      code += shape.dim;
      values += shape.dim;
    }
    return true;
  }

 private:
  size_t CodesAt(const SlabTile& tile) const {
    return 2 * tile.slab.vectors() + PackedBytes(tile.first_value(), bits_);
  }

  static double CodedLength(const std::vector<float>& entries, const uint8_t* codes,
                            const SlabShape& shape) {
    std::array<float, kMaxHeadDim> coded;
    CodebookLoops::Best().scaled(entries, codes, shape.dim, 1.0f, coded.data());
    return std::sqrt(CodebookLoops::Best().squared_length(coded.data(), shape.dim));
  }

  const uint32_t bits_;
  const bool corrected_;
};

// The products are exact.
double SquaredLength(const float* x, size_t count) {
  std::array<double, 8> lanes{};
  for (size_t i = 0; i < count; ++i) lanes[i % 8] += double{x[i]} * double{x[i]};
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

// How many of the middles between neighbouring entries lie below a value is its entry.
void Nearest(const std::vector<float>& entries, const float* x, size_t count, float scale,
             uint8_t* codes) {
  for (size_t i = 0; i < count; ++i) {
    const float u = x[i] * scale;
    uint8_t code = 0;
    for (size_t e = 1; e < entries.size(); ++e) code += (entries[e - 1] + entries[e]) * 0.5f < u;
    codes[i] = code;
  }
}

void Scaled(const std::vector<float>& entries, const uint8_t* codes, size_t count, float scale,
            float* out) {
  for (size_t i = 0; i < count; ++i) out[i] = entries[codes[i]] * scale;
}

}  // namespace

const CodebookLoops& CodebookLoops::Reference() {
  static constexpr CodebookLoops kLoops{Nearest, Scaled, SquaredLength};
  return kLoops;
}

std::vector<float> LloydMax(uint32_t bits, uint32_t dim) {
  const PositiveEntries& table = dim == 64 ? kSphere64 : dim == 128 ? kSphere128 : kGaussian;
  const size_t half = size_t{1} << (bits - 1);
  const float* const positive = table.data() + half - 1;
  std::vector<float> entries(2 * half);
  for (size_t i = 0; i < half; ++i) {
    entries[half + i] = positive[i];
    entries[half - 1 - i] = -positive[i];
  }
  return entries;
}

absl::StatusOr<std::unique_ptr<Quantizer>> MakeCodebook(const OpArguments& arguments) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"bits", "norm"}));
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t bits, arguments.Number("bits", 4, 1, kMaxBits));
  KVSTOW_ASSIGN_OR_RETURN(const size_t norm, arguments.Word("norm", {"plain", "corrected"}));
  return std::make_unique<Codebook>(bits, norm == 1);
}

}  // namespace kvstow
