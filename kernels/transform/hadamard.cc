#include "kernels/transform/hadamard.h"

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "base/status_macros.h"
#include "kernels/split_mix.h"

namespace kvstow {
namespace {

void TransformBlock(size_t n, float* x) {
  for (size_t stride = 1; stride < n; stride *= 2) {
    for (size_t begin = 0; begin < n; begin += 2 * stride) {
      for (size_t i = begin; i < begin + stride; ++i) {
        const float a = x[i], b = x[i + stride];
        x[i] = a + b;
        x[i + stride] = a - b;
      }
    }
  }
  for (size_t i = 0; i < n; ++i) x[i] *= HadamardScale(n);
}

class Hadamard final : public Transform {
 public:
  Hadamard() {
    for (size_t c = 0; c < signs_.size(); ++c) signs_[c] = SplitMix64(c) & 1 ? -1.0f : 1.0f;
  }

  bool EachTokenAlone() const override { return true; }
  uint32_t TileTokens(const SlabShape&) const override { return 1; }
  bool Forward(const SlabShape& shape, float* values, uint8_t*) const override {
    ApplySigns(shape, values);
    HadamardBlocks(shape.vectors(), shape.dim, values);
    return true;
  }
  // H is its own inverse.
  bool Inverse(const SlabShape& shape, const uint8_t*, float* values) const override {
    HadamardBlocks(shape.vectors(), shape.dim, values);
    ApplySigns(shape, values);
    return true;
  }

 private:
  void ApplySigns(const SlabShape& shape, float* values) const {
    for (size_t v = 0; v < shape.vectors(); ++v, values += shape.dim) {
      for (uint32_t c = 0; c < shape.dim; ++c) values[c] *= signs_[c];
    }
  }

  std::array<float, kMaxHeadDim> signs_;
};

}  // namespace

void HadamardBlocksReference(size_t count, size_t dim, float* values) {
  for (size_t v = 0; v < count; ++v) {
    for (size_t left = dim; left > 0;) {
      const size_t n = std::bit_floor(left);
      TransformBlock(n, values);
      values += n;
      left -= n;
    }
  }
}

absl::StatusOr<std::unique_ptr<Transform>> MakeHadamard(const OpArguments& arguments) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({}));
  return std::make_unique<Hadamard>();
}

}  // namespace kvstow
