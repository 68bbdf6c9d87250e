#include "kernels/quantize/block.h"

#include <array>

#include "base/status_macros.h"
#include "kernels/page/channel_rows.h"
#include "kernels/quantize/block_scales.h"
#include "kernels/quantize/loops.h"

namespace kvstow {
namespace {

struct Sizes {
  absl::string_view name;
  size_t values, bytes;
};

template <class Format>
constexpr Sizes SizesOf(absl::string_view name) {
  return {name, Format::kValues, Format::kBytes};
}

// In the order of BlockFormat.
constexpr Sizes kFormats[] = {SizesOf<Q8Format>("q8_0"), SizesOf<Q4Format>("q4_0"),
                              SizesOf<Nv4Format>("nvfp4"), SizesOf<Mx4Format>("mxfp4"),
                              SizesOf<Mx8Format>("mxfp8")};
constexpr size_t kMaxBlock = 32;

class Block final : public Quantizer {
 public:
  explicit Block(BlockFormat format)
      : format_(format),
        sizes_(kFormats[static_cast<size_t>(format)]),
        tensor_scale_(format == BlockFormat::kNv4) {}

  uint32_t levels() const override { return 1; }

  size_t LevelBytes(const SlabShape& shape, uint32_t) const override {
    return (tensor_scale_ ? sizeof(float) : 0) + shape.vectors() * VectorBytes(shape);
  }
  std::vector<BodyPart> Parts(const SlabShape& shape, uint32_t) const override {
    const BodyPart blocks{8 * shape.heads * VectorBytes(shape)};
    if (!tensor_scale_) return {blocks};
    return {{8 * sizeof(float), kAllTokens}, blocks};
  }

  // A scale of the tensor needs all of its values.
  uint32_t TileTokens(const SlabShape& shape) const override {
    return tensor_scale_ ? shape.tokens : 1;
  }

  bool Encode(const SlabTile& tile, const float* values,
              std::span<uint8_t* const> bodies) const override {
    const float top = LargestMagnitude(values, tile.values());
    if (!(top <= kMaxHalf)) return false;
    const float tensor = tensor_scale_ ? top / (kMaxE4M3 * kMaxE2M1) : 0;
    if (tensor_scale_) std::memcpy(bodies[0], &tensor, sizeof(tensor));
    uint8_t* out = bodies[0] + BlocksAt(tile);
    ForStretches(tile.shape(), [&](size_t first, size_t count) {
      if (const size_t blocks = count / sizes_.values; blocks > 0) {
        BlockLoops::Best().encode(format_, values + first, blocks, tensor, out);
        out += blocks * sizes_.bytes;
      }
      if (const size_t rest = count % sizes_.values; rest > 0) {
        std::array<float, kMaxBlock> x{};
        std::copy_n(values + first + count - rest, rest, x.begin());
        BlockLoops::Best().encode(format_, x.data(), 1, tensor, out);
        out += sizes_.bytes;
      }
    });
    return true;
  }

  bool Decode(const SlabTile& tile, std::span<const uint8_t* const> bodies,
              float* values) const override {
    const uint8_t* in = bodies[0] + BlocksAt(tile);
    float tensor = 0;
    if (tensor_scale_) {
      std::memcpy(&tensor, bodies[0], sizeof(tensor));
      if (!(tensor >= 0) || !std::isfinite(tensor * kMaxE4M3 * kMaxE2M1)) return false;
    }
    bool ok = true;
    ForStretches(tile.shape(), [&](size_t first, size_t count) {
      if (const size_t blocks = count / sizes_.values; blocks > 0) {
        ok &= BlockLoops::Best().decode(format_, in, blocks, tensor, values + first);
        in += blocks * sizes_.bytes;
      }
      if (const size_t rest = count % sizes_.values; rest > 0) {
        std::array<float, kMaxBlock> x;
        ok &= BlockLoops::Best().decode(format_, in, 1, tensor, x.data());
        std::copy_n(x.begin(), rest, values + first + count - rest);
        in += sizes_.bytes;
      }
    });
    return ok;
  }

 private:
  size_t VectorBytes(const SlabShape& shape) const {
    return (shape.dim + sizes_.values - 1) / sizes_.values * sizes_.bytes;
  }

  size_t BlocksAt(const SlabTile& tile) const {
    return (tensor_scale_ ? sizeof(float) : 0) + tile.first_vector() * VectorBytes(tile.slab);
  }

  // Calls f(first value, how many) for values whose blocks are whole, but for the last: all of them
  // where head vectors are whole blocks, else vector after vector.
  template <typename F>
  void ForStretches(const SlabShape& shape, F f) const {
    const size_t stretch = shape.dim % sizes_.values == 0 ? shape.values() : shape.dim;
    for (size_t first = 0; first < shape.values(); first += stretch) f(first, stretch);
  }

  const BlockFormat format_;
  const Sizes sizes_;
  const bool tensor_scale_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Quantizer>> MakeBlock(const OpArguments& arguments) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"format"}));
  KVSTOW_ASSIGN_OR_RETURN(
      const size_t format,
      arguments.Word("format", {kFormats[0].name, kFormats[1].name, kFormats[2].name,
                                kFormats[3].name, kFormats[4].name}));
  return std::make_unique<Block>(static_cast<BlockFormat>(format));
}

}  // namespace kvstow
