#include "kernels/quantize/fp16_values.h"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "kernels/page/convert.h"
#include "kernels/page/half.h"

namespace kvstow {
namespace {

class Fp16Values final : public Quantizer {
 public:
  uint32_t levels() const override { return 1; }
  size_t LevelBytes(const SlabShape& shape, uint32_t) const override { return 2 * shape.values(); }
  bool Encode(const SlabTile& tile, const float* values,
              std::span<uint8_t* const> bodies) const override {
    const SlabShape& shape = tile.slab;
    const auto fits = [](float v) { return std::abs(v) <= kMaxHalf; };
    if (!std::all_of(values, values + shape.values(), fits)) return false;
    StoreHalves(values, shape.values(), bodies[0]);
    return true;
  }
  bool Decode(const SlabTile& tile, std::span<const uint8_t* const> bodies,
              float* values) const override {
    const SlabShape& shape = tile.slab;
    return LoadHalves(bodies[0], shape.values(), values);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Quantizer>> MakeFp16Values(const OpArguments& arguments) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({}));
  return std::make_unique<Fp16Values>();
}

}  // namespace kvstow
