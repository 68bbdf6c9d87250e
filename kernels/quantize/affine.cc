#include "kernels/quantize/affine.h"

#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "kernels/convert.h"
#include "kernels/entropy/bit_pack.h"

namespace kvstow {
namespace {

enum class Axis : uint8_t { kToken = 0, kChannel = 1 };

class Affine final : public Quantizer {
 public:
  Affine(uint32_t bits, uint32_t group, Axis k, Axis v)
      : bits_(bits), group_(group), k_(k), v_(v) {}

  uint32_t levels() const override { return 1; }

  size_t LevelBytes(const SlabShape& shape, uint32_t) const override {
    return 4 * CountGroups(shape) + PackedBytes(shape.values(), bits_);
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
    const auto encode = AxisOf(shape) == Axis::kToken ? AffineEncodeRows : AffineEncodeColumns;
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
    const auto decode = AxisOf(shape) == Axis::kToken ? AffineDecodeRows : AffineDecodeColumns;
    decode(g, steps.data(), minima.data(), codes, values);
    return true;
  }

 private:
  Axis AxisOf(const SlabShape& shape) const { return shape.part == Part::kK ? k_ : v_; }

  AffineGroups Groups(const SlabShape& shape) const {
    if (AxisOf(shape) == Axis::kToken) {
      return {shape.vectors(), shape.dim, std::min<size_t>(group_, shape.dim), bits_};
    }
    return {shape.tokens, size_t{shape.heads} * shape.dim, std::min(group_, shape.tokens), bits_};
  }

  size_t CountGroups(const SlabShape& shape) const {
    const AffineGroups g = Groups(shape);
    const size_t along = AxisOf(shape) == Axis::kToken ? g.width : g.rows;
    const size_t across = AxisOf(shape) == Axis::kToken ? g.rows : g.width;
    return across * ((along + g.group - 1) / g.group);
  }

  const uint32_t bits_, group_;
  const Axis k_, v_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Quantizer>> MakeAffine(const OpArguments& arguments) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"bits", "group", "k", "v"}));
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t bits, arguments.Number("bits", 8, 1, 8));
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t group, arguments.Number("group", 64, 1, kMaxPageTokens));
  KVSTOW_ASSIGN_OR_RETURN(const size_t k, arguments.Word("k", {"token", "channel"}));
  KVSTOW_ASSIGN_OR_RETURN(const size_t v, arguments.Word("v", {"token", "channel"}));
  return std::make_unique<Affine>(bits, group, static_cast<Axis>(k), static_cast<Axis>(v));
}

}  // namespace kvstow
