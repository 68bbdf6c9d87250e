#include "kernels/quantize/affine.h"

#include "base/status_macros.h"
#include "kernels/convert.h"
#include "kernels/entropy/bit_pack.h"
#include "kernels/quantize/group_axis.h"
#include "kernels/quantize/tile_array.h"

namespace kvstow {
namespace {

class Affine final : public Quantizer {
 public:
  Affine(uint32_t bits, const GroupAxes& axes) : bits_(bits), axes_(axes) {}

  uint32_t levels() const override { return 1; }

  size_t LevelBytes(const SlabShape& shape, uint32_t) const override {
    return 4 * CountGroups(shape) + PackedBytes(shape.values(), bits_);
  }
  std::vector<BodyPart> Parts(const SlabShape& shape, uint32_t) const override {
    const BodyPart scales = axes_.PartOf(shape, 16);
    return {scales, scales, {bits_ * (shape.values() / shape.tokens)}};
  }

  uint32_t TileTokens(const SlabShape& shape) const override { return axes_.TileTokens(shape); }

  bool Encode(const SlabTile& tile, const float* values,
              std::span<uint8_t* const> bodies) const override {
    const GroupLayout at = axes_.LayoutOf(tile.shape());
    const Offsets to = OffsetsOf(tile);
    uint8_t* const packed = bodies[0] + to.codes;
    FloatArray steps(at.groups()), minima(at.groups());
    CodeArray unpacked(bits_ == 8 ? 0 : tile.values());
    uint8_t* const codes = bits_ == 8 ? packed : unpacked.data();
    const auto encode = at.along_rows ? AffineEncodeRows : AffineEncodeColumns;
    if (!encode(Groups(at), values, steps.data(), minima.data(), codes)) return false;
    StoreHalves(steps.data(), steps.size(), bodies[0] + to.steps);
    StoreHalves(minima.data(), minima.size(), bodies[0] + to.minima);
    if (bits_ != 8) PackBits(codes, tile.values(), bits_, packed);
    return true;
  }

  bool Decode(const SlabTile& tile, std::span<const uint8_t* const> bodies,
              float* values) const override {
    const GroupLayout at = axes_.LayoutOf(tile.shape());
    const Offsets from = OffsetsOf(tile);
    const uint8_t* codes = bodies[0] + from.codes;
    FloatArray steps(at.groups()), minima(at.groups());
    if (!LoadHalves(bodies[0] + from.steps, steps.size(), steps.data()) ||
        !LoadHalves(bodies[0] + from.minima, minima.size(), minima.data())) {
      return false;
    }
    CodeArray unpacked(bits_ == 8 ? 0 : tile.values());
    if (bits_ != 8) {
      UnpackBits(codes, unpacked.size(), bits_, unpacked.data());
      codes = unpacked.data();
    }
    const auto decode = at.along_rows ? AffineDecodeRows : AffineDecodeColumns;
    decode(Groups(at), steps.data(), minima.data(), codes, values);
    return true;
  }

 private:
  // Where a tile's parts are within the body of its slab.
  struct Offsets {
    size_t steps, minima, codes;
  };
  Offsets OffsetsOf(const SlabTile& tile) const {
    const size_t groups = CountGroups(tile.slab), before = axes_.GroupsBefore(tile);
    return {2 * before, 2 * (groups + before), 4 * groups + PackedBytes(tile.first_value(), bits_)};
  }

  AffineGroups Groups(const GroupLayout& at) const { return {at.rows, at.width, at.group, bits_}; }

  size_t CountGroups(const SlabShape& shape) const { return axes_.LayoutOf(shape).groups(); }

  const uint32_t bits_;
  const GroupAxes axes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Quantizer>> MakeAffine(const OpArguments& arguments) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"bits", "group", "k", "v"}));
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t bits, arguments.Number("bits", 8, 1, 8));
  KVSTOW_ASSIGN_OR_RETURN(const GroupAxes axes, ReadGroupAxes(arguments));
  return std::make_unique<Affine>(bits, axes);
}

}  // namespace kvstow
