#include "kernels/quantize/affine.h"

#include <vector>

#include "base/status_macros.h"
#include "kernels/convert.h"
#include "kernels/entropy/bit_pack.h"
#include "kernels/quantize/group_axis.h"

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

  bool Encode(const SlabShape& shape, const float* values,
              std::span<uint8_t* const> bodies) const override {
    const size_t groups = CountGroups(shape);
    uint8_t* const body = bodies[0];
    uint8_t* const packed = body + 4 * groups;
    std::vector<float> steps(groups), minima(groups);
    std::vector<uint8_t> unpacked(bits_ == 8 ? 0 : shape.values());
    uint8_t* const codes = bits_ == 8 ? packed : unpacked.data();
    const AffineGroups g = Groups(shape);
    const auto encode = axes_.LayoutOf(shape).along_rows ? AffineEncodeRows : AffineEncodeColumns;
    if (!encode(g, values, steps.data(), minima.data(), codes)) return false;
    StoreHalves(steps.data(), groups, body);
    StoreHalves(minima.data(), groups, body + 2 * groups);
    if (bits_ != 8) PackBits(codes, shape.values(), bits_, packed);
    return true;
  }

  bool Decode(const SlabShape& shape, std::span<const uint8_t* const> bodies,
              float* values) const override {
    const size_t groups = CountGroups(shape);
    const uint8_t* const body = bodies[0];
    const uint8_t* codes = body + 4 * groups;
    std::vector<float> steps(groups), minima(groups);
    if (!LoadHalves(body, groups, steps.data()) ||
        !LoadHalves(body + 2 * groups, groups, minima.data())) {
      return false;
    }
    std::vector<uint8_t> unpacked(bits_ == 8 ? 0 : shape.values());
    if (bits_ != 8) {
      UnpackBits(codes, shape.values(), bits_, unpacked.data());
      codes = unpacked.data();
    }
    const AffineGroups g = Groups(shape);
    const auto decode = axes_.LayoutOf(shape).along_rows ? AffineDecodeRows : AffineDecodeColumns;
    decode(g, steps.data(), minima.data(), codes, values);
    return true;
  }

 private:
  AffineGroups Groups(const SlabShape& shape) const {
    const GroupLayout at = axes_.LayoutOf(shape);
    return {at.rows, at.width, at.group, bits_};
  }

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
