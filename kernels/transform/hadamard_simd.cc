// The Hadamard transform, once for each SIMD target, chosen at run time. Its additions are those of
// the reference, stage by stage: the same bits.
#include <algorithm>
#include <vector>

#include "kernels/transform/hadamard.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/transform/hadamard_simd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;

// Strides below a vector: each lane takes its partner's value; lanes in the upper half of a pair
// subtract themselves from it.
struct NarrowStage {
  HWY_ALIGN int32_t partner[hn::MaxLanes(D())];
  HWY_ALIGN float sign[hn::MaxLanes(D())];

  explicit NarrowStage(size_t stride) {
    for (size_t i = 0; i < hn::MaxLanes(D()); ++i) {
      partner[i] = static_cast<int32_t>(i ^ stride);
      sign[i] = (i & stride) != 0 ? -0.0f : 0.0f;
    }
  }

  HWY_INLINE void Run(D d, size_t n, float* x) const {
    const auto indices = hn::SetTableIndices(d, partner);
    const auto signs = hn::Load(d, sign);
    for (size_t i = 0; i < n; i += hn::Lanes(d)) {
      const auto v = hn::LoadU(d, x + i);
      hn::StoreU(hn::Add(hn::TableLookupLanes(v, indices), hn::Xor(v, signs)), d, x + i);
    }
  }
};

HWY_INLINE void WideStage(D d, size_t stride, size_t n, float* x) {
  const size_t lanes = hn::Lanes(d);
  for (size_t begin = 0; begin < n; begin += 2 * stride) {
    for (size_t i = begin; i < begin + stride; i += lanes) {
      const auto a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + i + stride);
      hn::StoreU(hn::Add(a, b), d, x + i);
      hn::StoreU(hn::Sub(a, b), d, x + i + stride);
    }
  }
}

void TransformVectors(size_t count, size_t dim, float* values) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  std::vector<NarrowStage> narrow;
  for (size_t stride = 1; stride < lanes; stride *= 2) narrow.emplace_back(stride);
  for (size_t v = 0; v < count; ++v) {
    for (size_t left = dim; left > 0;) {
      const size_t n = std::bit_floor(left);
      if (n < lanes) {
        HadamardBlocksReference(1, n, values);
      } else {
        for (const NarrowStage& stage : narrow) stage.Run(d, n, values);
        for (size_t stride = lanes; stride < n; stride *= 2) WideStage(d, stride, n, values);
        const auto scale = hn::Set(d, HadamardScale(n));
        for (size_t i = 0; i < n; i += lanes) {
          hn::StoreU(hn::Mul(hn::LoadU(d, values + i), scale), d, values + i);
        }
      }
      values += n;
      left -= n;
    }
  }
}

}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(TransformVectors);

void HadamardBlocks(size_t count, size_t dim, float* values) {
  HWY_DYNAMIC_DISPATCH(TransformVectors)(count, dim, values);
}

}  // namespace kvstow
#endif  // HWY_ONCE
