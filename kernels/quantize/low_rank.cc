#include "kernels/quantize/low_rank.h"

#include <algorithm>

#include "base/status_macros.h"
#include "kernels/page/convert.h"
#include "kernels/page/half.h"
#include "kernels/transform/singular_vectors.h"

namespace kvstow {
namespace {

class LowRank final : public Quantizer {
 public:
  explicit LowRank(uint32_t rank) : rank_(rank) {}

  uint32_t levels() const override { return 1; }

  size_t LevelBytes(const SlabShape& shape, uint32_t) const override {
    return 2 * RankOf(shape) * shape.heads * (size_t{shape.tokens} + shape.dim);
  }

  bool Encode(const SlabTile& tile, const float* values,
              std::span<uint8_t* const> bodies) const override {
    const SlabShape& shape = tile.slab;
    const size_t rank = RankOf(shape), row = size_t{shape.heads} * shape.dim;
    uint8_t* out = bodies[0];
    for (uint32_t head = 0; head < shape.heads; ++head) {
      const MatrixView x{values + size_t{head} * shape.dim, shape.tokens, shape.dim, row};
      std::vector<float> vectors = RightSingularVectors(x, rank);
      if (!RoundToHalves(vectors, out)) return false;
      out += 2 * vectors.size();
      std::vector<float> a = Project(x, vectors, rank);
      if (!RoundToHalves(a, out)) return false;
      out += 2 * a.size();
    }
    return true;
  }

  bool Decode(const SlabTile& tile, std::span<const uint8_t* const> bodies,
              float* values) const override {
    const SlabShape& shape = tile.slab;
    const size_t rank = RankOf(shape), row = size_t{shape.heads} * shape.dim;
    std::vector<float> vectors(rank * shape.dim), a(rank * shape.tokens);
    const uint8_t* in = bodies[0];
    std::fill_n(values, shape.values(), 0.0f);
    for (uint32_t head = 0; head < shape.heads; ++head) {
      if (!LoadHalves(in, vectors.size(), vectors.data())) return false;
      in += 2 * vectors.size();
      if (!LoadHalves(in, a.size(), a.data())) return false;
      in += 2 * a.size();
      AddProduct(a, vectors, rank, row, values + size_t{head} * shape.dim);
    }
    return true;
  }

 private:
  size_t RankOf(const SlabShape& shape) const { return std::min({rank_, shape.tokens, shape.dim}); }

  const uint32_t rank_;
};

}  // namespace

bool RoundToHalves(std::vector<float>& values, uint8_t* out) {
  for (float& value : values) {
    const uint16_t half = FloatToHalf(value);
    if (!IsFiniteHalf(half)) return false;
    value = HalfToFloat(half);
  }
  StoreHalves(values.data(), values.size(), out);
  return true;
}

void AddProduct(const std::vector<float>& a, const std::vector<float>& vectors, size_t count,
                size_t stride, float* y) {
  const size_t columns = vectors.size() / count;
  for (size_t i = 0; i < a.size(); ++i) {
    const float* const vector = &vectors[i % count * columns];
    float* const out = y + i / count * stride;
    for (size_t c = 0; c < columns; ++c) out[c] += a[i] * vector[c];
  }
}

absl::StatusOr<std::unique_ptr<Quantizer>> MakeLowRank(const OpArguments& arguments) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"rank"}));
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t rank, arguments.Number("rank", 4, 1, 64));
  return std::make_unique<LowRank>(rank);
}

}  // namespace kvstow
