#include "kernels/transform/mean.h"

#include <vector>

#include "base/status_macros.h"
#include "kernels/page/convert.h"
#include "kernels/page/half.h"

namespace kvstow {
namespace {

class Mean final : public Transform {
 public:
  explicit Mean(bool of_v) : of_v_(of_v) {}

  size_t SideBytes(const SlabShape& shape) const override { return 2 * Means(shape); }

  uint32_t TileTokens(const SlabShape& shape) const override {
    return Means(shape) == 0 ? 1 : shape.tokens;
  }
  bool EachTokenAlone() const override { return true; }
  bool Forward(const SlabShape& shape, float* values, uint8_t* side) const override {
    const size_t width = Means(shape);
    std::vector<double> sums(width);
    std::vector<float> means(width);
    for (size_t i = 0; width > 0 && i < shape.values(); i += width) {
      for (size_t c = 0; c < width; ++c) sums[c] += values[i + c];
    }
    for (size_t c = 0; c < width; ++c) {
      const uint16_t half = FloatToHalf(static_cast<float>(sums[c] / shape.tokens));
      if (!IsFiniteHalf(half)) return false;
      means[c] = HalfToFloat(half);
    }
    StoreHalves(means.data(), width, side);
    for (size_t i = 0; width > 0 && i < shape.values(); i += width) {
      for (size_t c = 0; c < width; ++c) values[i + c] -= means[c];
    }
    return true;
  }

  bool Inverse(const SlabShape& shape, const uint8_t* side, float* values) const override {
    const size_t width = Means(shape);
    std::vector<float> means(width);
    if (!LoadHalves(side, width, means.data())) return false;
    for (size_t i = 0; width > 0 && i < shape.values(); i += width) {
      for (size_t c = 0; c < width; ++c) values[i + c] += means[c];
    }
    return true;
  }

 private:
  // How many means the slab has: 0 when it passes as it is.
  size_t Means(const SlabShape& shape) const {
    return shape.part == Part::kK || of_v_ ? size_t{shape.heads} * shape.dim : 0;
  }

  const bool of_v_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transform>> MakeMean(const OpArguments& arguments) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"part"}));
  KVSTOW_ASSIGN_OR_RETURN(const size_t part, arguments.Word("part", {"k", "kv"}));
  return std::make_unique<Mean>(part == 1);
}

}  // namespace kvstow
