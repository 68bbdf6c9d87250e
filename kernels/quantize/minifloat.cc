#include "kernels/quantize/minifloat.h"

#include "base/status_macros.h"
#include "kernels/page/convert.h"
#include "kernels/quantize/loops.h"
#include "kernels/quantize/tile_array.h"

namespace kvstow {
namespace {

class Minifloat final : public Quantizer {
 public:
  uint32_t levels() const override { return 1; }
  size_t LevelBytes(const SlabShape& shape, uint32_t) const override {
    return 2 * shape.vectors() + shape.values();
  }
  std::vector<BodyPart> Parts(const SlabShape& shape, uint32_t) const override {
    return {{uint64_t{16} * shape.heads}, {8 * (shape.values() / shape.tokens)}};
  }

  uint32_t TileTokens(const SlabShape&) const override { return 1; }

  bool Encode(const SlabTile& tile, const float* values,
              std::span<uint8_t* const> bodies) const override {
    FloatArray tops(tile.vectors());
    if (!MagnitudeLoops::Best().tops(values, tops.size(), tile.slab.dim, tops.data())) return false;
    StoreHalves(tops.data(), tops.size(), bodies[0] + 2 * tile.first_vector());
    MinifloatLoops::Best().encode(values, tops.size(), tile.slab.dim, tops.data(),
                                  bodies[0] + CodesAt(tile));
    return true;
  }

  bool Decode(const SlabTile& tile, std::span<const uint8_t* const> bodies,
              float* values) const override {
    FloatArray tops(tile.vectors());
    if (!LoadHalves(bodies[0] + 2 * tile.first_vector(), tops.size(), tops.data())) return false;
    const uint8_t* const codes = bodies[0] + CodesAt(tile);
    return MinifloatLoops::Best().decode(codes, tops.size(), tile.slab.dim, tops.data(), values);
  }

 private:
  static size_t CodesAt(const SlabTile& tile) {
    return 2 * tile.slab.vectors() + tile.first_value();
  }
};

void Encode(const float* values, size_t count, size_t dim, const float* tops, uint8_t* codes) {
  for (size_t v = 0; v < count; ++v) {
    const float scale = tops[v] > 0 ? kMaxE4M3 / tops[v] : 0.0f;
    for (size_t i = 0; i < dim; ++i) *codes++ = FloatToE4M3(*values++ * scale);
  }
}

bool Decode(const uint8_t* codes, size_t count, size_t dim, const float* tops, float* values) {
  bool ok = true;
  for (size_t v = 0; v < count; ++v) {
    const float scale = tops[v] / kMaxE4M3;
    for (size_t i = 0; i < dim; ++i, ++codes) {
      ok &= (*codes & 0x7f) != 0x7f;
      *values++ = E4M3ToFloat(*codes) * scale;
    }
  }
  return ok;
}

}  // namespace

const MinifloatLoops& MinifloatLoops::Reference() {
  static constexpr MinifloatLoops kLoops{Encode, Decode};
  return kLoops;
}

absl::StatusOr<std::unique_ptr<Quantizer>> MakeMinifloat(const OpArguments& arguments) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"format"}));
  KVSTOW_RETURN_IF_ERROR(arguments.Word("format", {"e4m3"}).status());
  return std::make_unique<Minifloat>();
}

}  // namespace kvstow
