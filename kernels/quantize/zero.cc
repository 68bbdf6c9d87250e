#include "kernels/quantize/zero.h"

#include <algorithm>

#include "base/status_macros.h"

namespace kvstow {
namespace {

class Zero final : public Quantizer {
 public:
  uint32_t levels() const override { return 1; }
  size_t LevelBytes(const SlabShape&, uint32_t) const override { return 0; }
  bool Encode(const SlabTile&, const float*, std::span<uint8_t* const>) const override {
    return true;
  }
  bool Decode(const SlabTile& tile, std::span<const uint8_t* const>, float* values) const override {
    std::fill_n(values, tile.values(), 0.0f);
    return true;
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Quantizer>> MakeZero(const OpArguments& arguments) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({}));
  return std::make_unique<Zero>();
}

}  // namespace kvstow
