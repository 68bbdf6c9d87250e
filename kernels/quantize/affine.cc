#include "kernels/quantize/affine.h"

#include <bit>

#include "base/status_macros.h"
#include "kernels/entropy/bit_pack.h"
#include "kernels/page/convert.h"
#include "kernels/quantize/group_axis.h"
#include "kernels/quantize/loops.h"
#include "kernels/quantize/tile_array.h"

namespace kvstow {
namespace {

class Affine final : public Quantizer, public RawQuantizer {
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
    const AffineLoops& loops = AffineLoops::Best();
    const auto encode = at.along_rows ? loops.encode_rows : loops.encode_columns;
    if (!encode(Groups(at), values, steps.data(), minima.data(), codes)) return false;
    StoreHalves(steps.data(), steps.size(), bodies[0] + to.steps);
    StoreHalves(minima.data(), minima.size(), bodies[0] + to.minima);
    if (bits_ != 8) PackBits(codes, tile.values(), bits_, packed);
    return true;
  }

  bool Decode(const SlabTile& tile, std::span<const uint8_t* const> bodies,
              float* values) const override {
    const GroupLayout at = axes_.LayoutOf(tile.shape());
    FloatArray steps(at.groups()), minima(at.groups());
    CodeArray unpacked(bits_ == 8 ? 0 : tile.values());
    const uint8_t* const codes = Load(tile, bodies[0], steps, minima, unpacked);
    if (codes == nullptr) return false;
    const AffineLoops& loops = AffineLoops::Best();
    const auto decode = at.along_rows ? loops.decode_rows : loops.decode_columns;
    decode(Groups(at), steps.data(), minima.data(), codes, values);
    return true;
  }

  const RawQuantizer* raw_forms() const override { return this; }

  bool TakesRaw(const SlabTile& tile, const RawValues& raw) const override {
    const GroupLayout at = axes_.LayoutOf(tile.shape());
    const bool turns = std::has_single_bit(tile.slab.dim) && tile.slab.dim % at.group == 0;
    return (raw.dtype == DType::kF16 || raw.dtype == DType::kBF16) && at.along_rows &&
           at.group % kAffineRawGroup == 0 && at.width % at.group == 0 &&
           (raw.signs == nullptr || turns);
  }

  bool EncodeRaw(const SlabTile& tile, const RawValues& raw, const uint8_t* from,
                 std::span<uint8_t* const> bodies, double* energy, double* error) const override {
    const AffineRaw g = RawGroups(tile, raw.dtype);
    const Offsets to = OffsetsOf(tile);
    CodeArray unpacked(bits_ == 8 ? 0 : tile.values());
    uint8_t* const packed = bodies[0] + to.codes;
    uint8_t* const codes = bits_ == 8 ? packed : unpacked.data();
    const Body body{bodies[0] + to.steps, bodies[0] + to.minima, codes};
    const bool ok = raw.signs == nullptr ? EncodeStraight(g, from, body, energy, error)
                                         : AffineTurnedLoops::Best().encode(
                                               g, {raw.signs, tile.slab.dim}, from, body.steps,
                                               body.minima, codes, energy, error);
    if (ok && bits_ != 8) PackBits(codes, tile.values(), bits_, packed);
    return ok;
  }

  bool DecodeRaw(const SlabTile& tile, const RawValues& raw, std::span<const uint8_t* const> bodies,
                 uint8_t* to) const override {
    const AffineRaw g = RawGroups(tile, raw.dtype);
    FloatArray steps(g.groups), minima(g.groups);
    CodeArray unpacked(bits_ == 8 ? 0 : tile.values());
    const uint8_t* const codes = Load(tile, bodies[0], steps, minima, unpacked);
    if (codes == nullptr) return false;
    if (raw.signs == nullptr) {
      AffineRawLoops::Best().decode(g, steps.data(), minima.data(), codes, to);
    } else {
      AffineTurnedLoops::Best().decode(g, {raw.signs, tile.slab.dim}, steps.data(), minima.data(),
                                       codes, to);
    }
    return true;
  }

 private:
  struct Body {
    uint8_t *steps, *minima, *codes;
  };
  // The values as they are.
  static bool EncodeStraight(const AffineRaw& g, const uint8_t* from, const Body& body,
                             double* energy, double* error) {
    if (!AffineRawLoops::Best().encode(g, from, body.steps, body.minima, body.codes)) return false;
    FloatArray steps(g.groups), minima(g.groups);
    LoadHalves(body.steps, g.groups, steps.data());
    LoadHalves(body.minima, g.groups, minima.data());
    AffineRawLoops::Best().measure(g, from, steps.data(), minima.data(), body.codes, energy, error);
    return true;
  }

  // Where a tile's parts are within the body of its slab.
  struct Offsets {
    size_t steps, minima, codes;
  };
  Offsets OffsetsOf(const SlabTile& tile) const {
    const size_t groups = CountGroups(tile.slab), before = axes_.GroupsBefore(tile);
    return {2 * before, 2 * (groups + before), 4 * groups + PackedBytes(tile.first_value(), bits_)};
  }

  // Scales and codes of a tile; `unpacked` holds the codes when bits are packed. Null when a scale
  // is not finite.
  const uint8_t* Load(const SlabTile& tile, const uint8_t* body, FloatArray& steps,
                      FloatArray& minima, CodeArray& unpacked) const {
    const Offsets from = OffsetsOf(tile);
    if (!LoadHalves(body + from.steps, steps.size(), steps.data()) ||
        !LoadHalves(body + from.minima, minima.size(), minima.data())) {
      return nullptr;
    }
    if (bits_ == 8) return body + from.codes;
    UnpackBits(body + from.codes, unpacked.size(), bits_, unpacked.data());
    return unpacked.data();
  }

  // The groups of a tile that TakesRaw takes.
  AffineRaw RawGroups(const SlabTile& tile, DType dtype) const {
    const GroupLayout at = axes_.LayoutOf(tile.shape());
    return {dtype, at.groups(), at.group, bits_};
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
