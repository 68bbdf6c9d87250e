#include "kernels/transform/hadamard.h"

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "base/status_macros.h"
#include "kernels/page/split_mix.h"
#include "kernels/transform/loops.h"

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
  const float* hadamard_signs() const override { return signs_.data(); }
  bool Forward(const SlabShape& shape, float* values, uint8_t*) const override {
    HadamardBlocks(shape.vectors(), shape.dim, values, signs_.data());
    return true;
  }
  // H is its own inverse.
  bool Inverse(const SlabShape& shape, const uint8_t*, float* values) const override {
    HadamardBlocks(shape.vectors(), shape.dim, values, nullptr, signs_.data());
    return true;
  }

 private:
  std::array<float, kMaxHeadDim> signs_;
};

void Multiply(const float* signs, size_t n, float* x) {
  for (size_t i = 0; signs != nullptr && i < n; ++i) x[i] *= signs[i];
}

void Blocks(size_t count, size_t dim, float* values, const float* before, const float* after) {
  for (size_t v = 0; v < count; ++v, values += dim) {
    Multiply(before, dim, values);
    for (size_t at = 0; at < dim; at += std::bit_floor(dim - at)) {
      TransformBlock(std::bit_floor(dim - at), values + at);
    }
    Multiply(after, dim, values);
  }
}

}  // namespace

const HadamardLoops& HadamardLoops::Reference() {
  static constexpr HadamardLoops kLoops{Blocks};
  return kLoops;
}

void HadamardBlocks(size_t count, size_t dim, float* values, const float* before,
                    const float* after) {
  HadamardLoops::Best().blocks(count, dim, values, before, after);
}

absl::StatusOr<std::unique_ptr<Transform>> MakeHadamard(const OpArguments& arguments) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({}));
  return std::make_unique<Hadamard>();
}

}  // namespace kvstow
