#include "kernels/quantize/sketch.h"

#include <cmath>
#include <vector>

#include "base/status_macros.h"
#include "kernels/entropy/bit_pack.h"
#include "kernels/page/convert.h"
#include "kernels/page/half.h"
#include "kernels/page/split_mix.h"
#include "kernels/quantize/codebook.h"
#include "kernels/quantize/loops.h"

namespace kvstow {
namespace {

constexpr float kRootHalfPi = 0x1.40d932p0f;  // sqrt(pi / 2)

// S, row after row, and its transpose.
struct SketchMatrix {
  explicit SketchMatrix(size_t dim) : rows(dim * dim), columns(dim * dim) {
    for (size_t i = 0; i < dim; ++i) {
      for (size_t j = 0; j < dim; ++j) {
        rows[i * dim + j] = columns[j * dim + i] = FixedGaussian(i * dim + j);
      }
    }
  }
  std::vector<float> rows, columns;
};

class Sketch final : public Quantizer {
 public:
  explicit Sketch(uint32_t bits) : bits_(bits) {}

  uint32_t levels() const override { return 1; }

  size_t LevelBytes(const SlabShape& shape, uint32_t) const override {
    return 4 * shape.vectors() + PackedBytes(shape.values(), bits_ - 1) +
           PackedBytes(shape.values(), 1);
  }
  std::vector<BodyPart> Parts(const SlabShape& shape, uint32_t) const override {
    const uint64_t values = shape.values() / shape.tokens;
    const BodyPart lengths{uint64_t{16} * shape.heads};
    return {lengths, lengths, {(bits_ - 1) * values}, {values}};
  }

  bool Encode(const SlabTile& tile, const float* values,
              std::span<uint8_t* const> bodies) const override {
    const SlabShape& shape = tile.slab;
    const size_t dim = shape.dim, vectors = shape.vectors();
    const std::vector<float> entries = LloydMax(bits_ - 1, shape.dim);
    const SketchMatrix matrix(dim);
    const float root = std::sqrt(static_cast<float>(dim));
    std::vector<float> lengths(vectors), rests(vectors), rest(dim), projected(dim);
    std::vector<uint8_t> codes(shape.values()), signs(shape.values());
    for (size_t v = 0; v < vectors; ++v) {
      const float* const x = values + v * dim;
      if (!RoundedLength(x, dim, &lengths[v])) return false;
      const float scale = lengths[v] > 0 ? root / lengths[v] : 0.0f;
      CodebookLoops::Best().nearest(entries, x, dim, scale, &codes[v * dim]);
      CodebookLoops::Best().scaled(entries, &codes[v * dim], dim, 1.0f, rest.data());
      for (size_t j = 0; j < dim; ++j) rest[j] = x[j] * scale - rest[j];
      if (!RoundedLength(rest.data(), dim, &rests[v])) return false;
      projected.assign(dim, 0.0f);
      for (size_t j = 0; j < dim; ++j) {
        for (size_t i = 0; i < dim; ++i) projected[i] += matrix.columns[j * dim + i] * rest[j];
      }
      for (size_t i = 0; i < dim; ++i) signs[v * dim + i] = projected[i] >= 0 ? 1 : 0;
    }
    uint8_t* out = bodies[0];
    StoreHalves(lengths.data(), vectors, out);
    StoreHalves(rests.data(), vectors, out + 2 * vectors);
    PackBits(codes.data(), codes.size(), bits_ - 1, out + 4 * vectors);
    PackBits(signs.data(), signs.size(), 1,
             out + 4 * vectors + PackedBytes(codes.size(), bits_ - 1));
    return true;
  }

  bool Decode(const SlabTile& tile, std::span<const uint8_t* const> bodies,
              float* values) const override {
    const SlabShape& shape = tile.slab;
    const size_t dim = shape.dim, vectors = shape.vectors();
    const uint8_t* const in = bodies[0];
    std::vector<float> lengths(vectors), rests(vectors), sum(dim);
    if (!LoadHalves(in, vectors, lengths.data())) return false;
    if (!LoadHalves(in + 2 * vectors, vectors, rests.data())) return false;
    std::vector<uint8_t> codes(shape.values()), signs(shape.values());
    UnpackBits(in + 4 * vectors, codes.size(), bits_ - 1, codes.data());
    UnpackBits(in + 4 * vectors + PackedBytes(codes.size(), bits_ - 1), signs.size(), 1,
               signs.data());
    const std::vector<float> entries = LloydMax(bits_ - 1, shape.dim);
    const SketchMatrix matrix(dim);
    const float root = std::sqrt(static_cast<float>(dim));
    for (size_t v = 0; v < vectors; ++v) {
      sum.assign(dim, 0.0f);
      for (size_t i = 0; i < dim; ++i) {
        const float sign = signs[v * dim + i] != 0 ? 1.0f : -1.0f;
        for (size_t j = 0; j < dim; ++j) sum[j] += matrix.rows[i * dim + j] * sign;
      }
      const float scale = lengths[v] / root;
      const float of_rest = kRootHalfPi / static_cast<float>(dim) * rests[v];
      float* const x = values + v * dim;
      CodebookLoops::Best().scaled(entries, &codes[v * dim], dim, 1.0f, x);
      for (size_t j = 0; j < dim; ++j) x[j] = (x[j] + sum[j] * of_rest) * scale;
    }
    return true;
  }

 private:
  // The length as fp16 holds it. False when it cannot.
  static bool RoundedLength(const float* x, size_t dim, float* length) {
    const uint16_t half =
        FloatToHalf(static_cast<float>(std::sqrt(CodebookLoops::Best().squared_length(x, dim))));
    *length = HalfToFloat(half);
    return IsFiniteHalf(half);
  }

  const uint32_t bits_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Quantizer>> MakeSketch(const OpArguments& arguments) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"bits"}));
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t bits, arguments.Number("bits", 4, 2, 5));
  return std::make_unique<Sketch>(bits);
}

}  // namespace kvstow
