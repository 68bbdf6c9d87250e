// The Hadamard transform, once for each SIMD target, chosen at run time. Its additions are those of
// the reference, stage by stage: the same bits.
#include <algorithm>

#include "kernels/transform/hadamard.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/transform/hadamard_simd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

void TransformVectors(size_t count, size_t dim, float* values, const float* before,
                      const float* after) {
  HadamardBlocksReference(count, dim, values, before, after);
}

#else

using D = hn::ScalableTag<float>;

// What the values are multiplied by before and after; null is 1. Signs only.
struct Signs {
  const float *before, *after;
  Signs operator+(size_t n) const {
    return {before == nullptr ? nullptr : before + n, after == nullptr ? nullptr : after + n};
  }
};

// Each lane with the one that is kStride away.
template <size_t kStride, class DF, class V>
HWY_INLINE V Partners(DF d, V v) {
  if constexpr (kStride == 1) {
    return hn::Reverse2(d, v);
  } else if constexpr (kStride == 2) {
    return hn::Shuffle1032(v);
  } else if constexpr (kStride == 4) {
    return hn::SwapAdjacentBlocks(v);
  } else {
    return hn::ConcatLowerUpper(d, v, v);
  }
}

// A stage of strides below a vector: lanes add their partner's value; those in the upper half of a
// pair subtract themselves from it. A product with 1 or -1 is exact, fused or not.
template <size_t kStride, size_t kVectors, class DF, class V>
HWY_INLINE void NarrowStage(DF d, V (&v)[kVectors]) {
  if constexpr (kStride < hn::MaxLanes(DF())) {
    HWY_ALIGN float sign[hn::MaxLanes(DF())];
    for (size_t i = 0; i < hn::MaxLanes(DF()); ++i) sign[i] = (i & kStride) != 0 ? -1.0f : 1.0f;
    const auto signs = hn::Load(d, sign);
    for (size_t i = 0; i < kVectors; ++i) {
      v[i] = hn::MulAdd(v[i], signs, Partners<kStride>(d, v[i]));
    }
  }
}

// The stages of kVectors vectors side by side, all in registers; without the factor.
template <size_t kVectors, class DF>
HWY_INLINE void Stages(DF d, const float* before, float* x) {
  const size_t lanes = hn::Lanes(d);
  hn::Vec<DF> v[kVectors];
  for (size_t i = 0; i < kVectors; ++i) v[i] = hn::LoadU(d, x + i * lanes);
  if (before != nullptr) {
    for (size_t i = 0; i < kVectors; ++i) v[i] = hn::Mul(v[i], hn::LoadU(d, before + i * lanes));
  }
  NarrowStage<1>(d, v);
  NarrowStage<2>(d, v);
  NarrowStage<4>(d, v);
  NarrowStage<8>(d, v);
  for (size_t stride = 1; stride < kVectors; stride *= 2) {
    for (size_t i = 0; i < kVectors; ++i) {
      if ((i & stride) != 0) continue;
      const auto a = v[i], b = v[i + stride];
      v[i] = hn::Add(a, b);
      v[i + stride] = hn::Sub(a, b);
    }
  }
  for (size_t i = 0; i < kVectors; ++i) hn::StoreU(v[i], d, x + i * lanes);
}

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

constexpr size_t kRegisters = 8;  // vectors of a block that are held at a time

HWY_INLINE void Block(D d, size_t n, const Signs& signs, float* x) {
  const size_t lanes = hn::Lanes(d), part = std::min(n, kRegisters * lanes);
  for (size_t i = 0; i < n; i += part) {
    const float* const before = signs.before == nullptr ? nullptr : signs.before + i;
    switch (part / lanes) {
      case 1:
        Stages<1>(d, before, x + i);
        break;
      case 2:
        Stages<2>(d, before, x + i);
        break;
      case 4:
        Stages<4>(d, before, x + i);
        break;
      default:
        Stages<kRegisters>(d, before, x + i);
    }
  }
  for (size_t stride = part; stride < n; stride *= 2) WideStage(d, stride, n, x);
  const auto scale = hn::Set(d, HadamardScale(n));
  for (size_t i = 0; i < n; i += lanes) {
    auto v = hn::Mul(hn::LoadU(d, x + i), scale);
    if (signs.after != nullptr) v = hn::Mul(v, hn::LoadU(d, signs.after + i));
    hn::StoreU(v, d, x + i);
  }
}

void TransformVectors(size_t count, size_t dim, float* values, const float* before,
                      const float* after) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t v = 0; v < count; ++v) {
    Signs signs{before, after};
    for (size_t left = dim; left > 0;) {
      const size_t n = std::bit_floor(left);
      if (n < lanes) {
        HadamardBlocksReference(1, n, values, signs.before, signs.after);
      } else {
        Block(d, n, signs, values);
      }
      signs = signs + n;
      values += n;
      left -= n;
    }
  }
}

#endif

}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(TransformVectors);

void HadamardBlocks(size_t count, size_t dim, float* values, const float* before,
                    const float* after) {
  HWY_DYNAMIC_DISPATCH(TransformVectors)(count, dim, values, before, after);
}

}  // namespace kvstow
#endif  // HWY_ONCE
