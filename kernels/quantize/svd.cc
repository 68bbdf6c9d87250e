#include "kernels/quantize/svd.h"

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/entropy/bit_pack.h"
#include "kernels/page/convert.h"
#include "kernels/quantize/loops.h"
#include "kernels/quantize/low_rank.h"
#include "kernels/transform/singular_vectors.h"

namespace kvstow {
namespace {

constexpr size_t kMaxParts = 16;

class Svd final : public Quantizer {
 public:
  explicit Svd(std::vector<uint32_t> bits) : bits_(std::move(bits)) {}

  uint32_t levels() const override { return 1; }

  size_t LevelBytes(const SlabShape& shape, uint32_t) const override {
    const std::vector<uint32_t> bits = KeptBits(shape);
    size_t head = bits.size() * (2 * size_t{shape.dim} + 4);
    for (const uint32_t b : bits) head += PackedBytes(shape.tokens, b);
    return head * shape.heads;
  }

  bool Encode(const SlabTile& tile, const float* values,
              std::span<uint8_t* const> bodies) const override {
    const SlabShape& shape = tile.slab;
    const std::vector<uint32_t> bits = KeptBits(shape);
    const size_t kept = bits.size(), row = size_t{shape.heads} * shape.dim;
    std::vector<float> column(shape.tokens), steps(kept), minima(kept);
    std::vector<uint8_t> codes(shape.tokens);
    uint8_t* out = bodies[0];
    for (uint32_t head = 0; head < shape.heads; ++head) {
      const MatrixView x{values + size_t{head} * shape.dim, shape.tokens, shape.dim, row};
      std::vector<float> vectors = RightSingularVectors(x, kept);
      if (!RoundToHalves(vectors, out)) return false;
      out += 2 * vectors.size();
      const std::vector<float> y = Project(x, vectors, kept);
      uint8_t* const scales = out;
      out += 4 * kept;
      for (size_t k = 0; k < kept; ++k) {
        for (size_t t = 0; t < column.size(); ++t) column[t] = y[t * kept + k];
        if (!AffineLoops::Best().encode_rows(OneGroup(shape, bits[k]), column.data(), &steps[k],
                                             &minima[k], codes.data())) {
          return false;
        }
        PackBits(codes.data(), codes.size(), bits[k], out);
        out += PackedBytes(codes.size(), bits[k]);
      }
      StoreHalves(steps.data(), kept, scales);
      StoreHalves(minima.data(), kept, scales + 2 * kept);
    }
    return true;
  }

  bool Decode(const SlabTile& tile, std::span<const uint8_t* const> bodies,
              float* values) const override {
    const SlabShape& shape = tile.slab;
    const std::vector<uint32_t> bits = KeptBits(shape);
    const size_t kept = bits.size(), row = size_t{shape.heads} * shape.dim;
    std::vector<float> vectors(kept * shape.dim), steps(kept), minima(kept), column(shape.tokens),
        y(kept * shape.tokens);
    std::vector<uint8_t> codes(shape.tokens);
    const uint8_t* in = bodies[0];
    std::fill_n(values, shape.values(), 0.0f);
    for (uint32_t head = 0; head < shape.heads; ++head) {
      if (!LoadHalves(in, vectors.size(), vectors.data())) return false;
      in += 2 * vectors.size();
      if (!LoadHalves(in, kept, steps.data()) || !LoadHalves(in + 2 * kept, kept, minima.data()))
        return false;
      in += 4 * kept;
      for (size_t k = 0; k < kept; ++k) {
        UnpackBits(in, codes.size(), bits[k], codes.data());
        in += PackedBytes(codes.size(), bits[k]);
        AffineLoops::Best().decode_rows(OneGroup(shape, bits[k]), &steps[k], &minima[k],
                                        codes.data(), column.data());
        for (size_t t = 0; t < column.size(); ++t) y[t * kept + k] = column[t];
      }
      AddProduct(y, vectors, kept, row, values + size_t{head} * shape.dim);
    }
    return true;
  }

 private:
  static AffineGroups OneGroup(const SlabShape& shape, uint32_t bits) {
    return {1, shape.tokens, shape.tokens, bits};
  }

  // Bits of the singular channels that are kept; there is at least one.
  std::vector<uint32_t> KeptBits(const SlabShape& shape) const {
    const size_t channels = std::min(shape.tokens, shape.dim);
    std::vector<uint32_t> kept;
    for (size_t j = 0; j < channels; ++j) {
      const uint32_t bits = bits_[j * bits_.size() / channels];
      if (bits > 0) kept.push_back(bits);
    }
    return kept;
  }

  const std::vector<uint32_t> bits_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Quantizer>> MakeSvd(const OpArguments& arguments) {
  std::vector<uint32_t> bits;
  for (const OpArgument& argument : arguments.op().arguments) {
    uint32_t b = 0;
    const uint32_t most = bits.empty() ? 8 : bits.back();
    if (!argument.name.empty() || bits.size() == kMaxParts ||
        !absl::SimpleAtoi(argument.value, &b) || b > most || (bits.empty() && b == 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "op 'svd': '", argument.value, "': it takes the bits of 1 to ", kMaxParts,
          " parts of the singular channels, each 0 to 8, the first not 0, none more than the one "
          "before"));
    }
    bits.push_back(b);
  }
  if (bits.empty()) return absl::InvalidArgumentError("op 'svd' needs the bits of its parts");
  return std::make_unique<Svd>(std::move(bits));
}

}  // namespace kvstow
