#include "kernels/quantize/symmetric.h"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "kernels/entropy/bit_pack.h"
#include "kernels/page/convert.h"
#include "kernels/page/half.h"
#include "kernels/quantize/group_axis.h"
#include "kernels/quantize/tile_array.h"

namespace kvstow {
namespace {

// Calls f(first, count, group) for values side by side: all of one group along rows; across rows,
// `group` is that of the first, and the next value has the next group.
template <typename F>
void ForStretches(const GroupLayout& at, F f) {
  const size_t a_row = at.along_rows ? at.group : at.width;
  size_t group = 0;
  for (size_t row = 0; row < at.rows; ++row) {
    if (!at.along_rows) group = row / at.group * at.width;
    for (size_t begin = 0; begin < at.width; begin += a_row) {
      f(row * at.width + begin, std::min(a_row, at.width - begin), group);
      if (at.along_rows) ++group;
    }
  }
}

class Symmetric final : public Quantizer {
 public:
  Symmetric(uint32_t bits, const GroupAxes& axes) : bits_(bits), axes_(axes) {}

  uint32_t levels() const override { return 1; }

  size_t LevelBytes(const SlabShape& shape, uint32_t) const override {
    return 2 * axes_.LayoutOf(shape).groups() + PackedBytes(shape.values(), bits_);
  }
  std::vector<BodyPart> Parts(const SlabShape& shape, uint32_t) const override {
    return {axes_.PartOf(shape, 16), {bits_ * (shape.values() / shape.tokens)}};
  }

  uint32_t TileTokens(const SlabShape& shape) const override { return axes_.TileTokens(shape); }

  bool Encode(const SlabTile& tile, const float* values,
              std::span<uint8_t* const> bodies) const override {
    const GroupLayout at = axes_.LayoutOf(tile.shape());
    FloatArray steps(at.groups(), 0.0f), inverses(at.groups());
    const size_t stride = at.along_rows ? 0 : 1;  // from the group of a value to that of the next
    ForStretches(at, [&](size_t first, size_t count, size_t group) {
      for (size_t i = 0; i < count; ++i) {
        float& top = steps[group + i * stride];
        top = std::max(top, std::abs(values[first + i]));
      }
    });
    const auto most = static_cast<float>(Middle() - 1);
    for (size_t i = 0; i < steps.size(); ++i) {
      const uint16_t step = FloatToHalf(steps[i] / most);
      if (!IsFiniteHalf(step) || steps[i] > kMaxHalf) return false;
      steps[i] = HalfToFloat(step);
      inverses[i] = steps[i] > 0 ? 1.0f / steps[i] : 0.0f;
    }
    CodeArray codes(tile.values());
    ForStretches(at, [&](size_t first, size_t count, size_t group) {
      for (size_t i = 0; i < count; ++i) {
        const float scaled = values[first + i] * inverses[group + i * stride];
        const float q = std::nearbyint(std::clamp(scaled, -most, most));
        codes[first + i] = static_cast<uint8_t>(static_cast<int>(q) + Middle());
      }
    });
    StoreHalves(steps.data(), steps.size(), bodies[0] + StepsAt(tile));
    PackBits(codes.data(), codes.size(), bits_, bodies[0] + CodesAt(tile));
    return true;
  }

  bool Decode(const SlabTile& tile, std::span<const uint8_t* const> bodies,
              float* values) const override {
    const GroupLayout at = axes_.LayoutOf(tile.shape());
    FloatArray steps(at.groups());
    if (!LoadHalves(bodies[0] + StepsAt(tile), steps.size(), steps.data())) return false;
    CodeArray codes(tile.values());
    UnpackBits(bodies[0] + CodesAt(tile), codes.size(), bits_, codes.data());
    const size_t stride = at.along_rows ? 0 : 1;
    ForStretches(at, [&](size_t first, size_t count, size_t group) {
      for (size_t i = 0; i < count; ++i) {
        values[first + i] =
            static_cast<float>(codes[first + i] - Middle()) * steps[group + i * stride];
      }
    });
    return true;
  }

 private:
  size_t StepsAt(const SlabTile& tile) const { return 2 * axes_.GroupsBefore(tile); }
  size_t CodesAt(const SlabTile& tile) const {
    return 2 * axes_.LayoutOf(tile.slab).groups() + PackedBytes(tile.first_value(), bits_);
  }

  int Middle() const { return 1 << (bits_ - 1); }

  const uint32_t bits_;
  const GroupAxes axes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Quantizer>> MakeSymmetric(const OpArguments& arguments) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"bits", "group", "k", "v"}));
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t bits, arguments.Number("bits", 8, 2, 8));
  KVSTOW_ASSIGN_OR_RETURN(const GroupAxes axes, ReadGroupAxes(arguments));
  return std::make_unique<Symmetric>(bits, axes);
}

}  // namespace kvstow
