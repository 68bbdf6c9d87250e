#include "kernels/quantize/signs.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "base/status_macros.h"
#include "kernels/entropy/bit_pack.h"
#include "kernels/page/convert.h"
#include "kernels/page/half.h"
#include "kernels/page/split_mix.h"
#include "kernels/quantize/loops.h"

namespace kvstow {
namespace {

constexpr float kRootHalfPi = 0x1.40d932p0f;  // sqrt(pi / 2)

class Signs final : public Quantizer {
 public:
  explicit Signs(uint32_t rows) : rows_(rows) {}

  uint32_t levels() const override { return 1; }

  size_t LevelBytes(const SlabShape& shape, uint32_t) const override {
    return 2 * shape.vectors() + PackedBytes(shape.values() * rows_, 1);
  }

  bool Encode(const SlabTile& tile, const float* values,
              std::span<uint8_t* const> bodies) const override {
    const SlabShape& shape = tile.slab;
    const size_t dim = shape.dim, vectors = shape.vectors(), m = dim * rows_;
    std::vector<float> lengths(vectors), row(dim);
    for (size_t v = 0; v < vectors; ++v) {
      const double length = std::sqrt(CodebookLoops::Best().squared_length(values + v * dim, dim));
      const uint16_t half = FloatToHalf(static_cast<float>(length));
      if (!IsFiniteHalf(half)) return false;
      lengths[v] = HalfToFloat(half);
    }
    StoreHalves(lengths.data(), vectors, bodies[0]);
    uint8_t* const signs = bodies[0] + 2 * vectors;
    std::memset(signs, 0, PackedBytes(vectors * m, 1));
    for (size_t i = 0; i < m; ++i) {
      FillRow(i, row);
      for (size_t v = 0; v < vectors; ++v) {
        float sum = 0;
        for (size_t j = 0; j < dim; ++j) sum += row[j] * values[v * dim + j];
        const size_t bit = v * m + i;
        if (sum >= 0) signs[bit / 8] |= static_cast<uint8_t>(1u << bit % 8);
      }
    }
    return true;
  }

  bool Decode(const SlabTile& tile, std::span<const uint8_t* const> bodies,
              float* values) const override {
    const SlabShape& shape = tile.slab;
    const size_t dim = shape.dim, vectors = shape.vectors(), m = dim * rows_;
    std::vector<float> lengths(vectors), row(dim);
    if (!LoadHalves(bodies[0], vectors, lengths.data())) return false;
    const uint8_t* const signs = bodies[0] + 2 * vectors;
    std::fill_n(values, shape.values(), 0.0f);
    for (size_t i = 0; i < m; ++i) {
      FillRow(i, row);
      for (size_t v = 0; v < vectors; ++v) {
        const size_t bit = v * m + i;
        const float sign = signs[bit / 8] >> bit % 8 & 1 ? 1.0f : -1.0f;
        for (size_t j = 0; j < dim; ++j) values[v * dim + j] += row[j] * sign;
      }
    }
    const float scale = kRootHalfPi / static_cast<float>(m);
    for (size_t v = 0; v < vectors; ++v) {
      for (size_t j = 0; j < dim; ++j) values[v * dim + j] *= scale * lengths[v];
    }
    return true;
  }

 private:
  static void FillRow(size_t i, std::vector<float>& row) {
    for (size_t j = 0; j < row.size(); ++j) row[j] = FixedGaussian(i * row.size() + j);
  }

  const uint32_t rows_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Quantizer>> MakeSigns(const OpArguments& arguments) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"rows"}));
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t rows, arguments.Number("rows", 2, 1, 64));
  return std::make_unique<Signs>(rows);
}

}  // namespace kvstow
