// The Hadamard transform of a block, which reads and writes it once. Files that are compiled for
// each SIMD target include it. Its additions are the reference's, stage by stage, so the bits are
// too.
#if defined(KVSTOW_KERNELS_TRANSFORM_HADAMARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSTOW_KERNELS_TRANSFORM_HADAMARD_INL_H_
#undef KVSTOW_KERNELS_TRANSFORM_HADAMARD_INL_H_
#else
#define KVSTOW_KERNELS_TRANSFORM_HADAMARD_INL_H_
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "kernels/transform/hadamard.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR  // no vectors

// Exchanges each lane with the one that is kStride away.
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

// Does a stage whose stride is below a vector. A lane adds its partner's value; a lane in the upper
// half of a pair subtracts itself from it. A product with 1 or -1 is exact, fused or not.
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

// Does the stages of kVectors vectors side by side, all in registers, without the factor.
template <size_t kVectors, class DF, class Load, class Store>
HWY_INLINE void Stages(DF d, Load load, Store store) {
  const size_t lanes = hn::Lanes(d);
  hn::Vec<DF> v[kVectors];
  for (size_t i = 0; i < kVectors; ++i) v[i] = load(i * lanes);
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
  for (size_t i = 0; i < kVectors; ++i) store(v[i], i * lanes);
}

template <class DF>
HWY_INLINE void WideStage(DF d, size_t stride, size_t n, float* x) {
  const size_t lanes = hn::Lanes(d);
  for (size_t begin = 0; begin < n; begin += 2 * stride) {
    for (size_t i = begin; i < begin + stride; i += lanes) {
      const auto a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + i + stride);
      hn::StoreU(hn::Add(a, b), d, x + i);
      hn::StoreU(hn::Sub(a, b), d, x + i + stride);
    }
  }
}

// Transforms a block of kVectors vectors: load(i) gives the vector at value i, store(vector, i)
// takes its result.
template <size_t kVectors, class DF, class Load, class Store>
HWY_INLINE void TransformInRegisters(DF d, Load load, Store store) {
  const auto factor = hn::Set(d, HadamardScale(kVectors * hn::Lanes(d)));
  Stages<kVectors>(d, load,
                   [&](hn::Vec<DF> v, size_t i) HWY_ATTR { store(hn::Mul(v, factor), i); });
}

constexpr size_t kHadamardRegisters = 8;  // vectors of a block in registers at a time

// Transforms n values, a power of two and at least two vectors. `scratch`, n floats, holds what
// does not fit into registers.
template <class DF, class Load, class Store>
HWY_INLINE void TransformBlock(DF d, size_t n, float* scratch, Load load, Store store) {
  const size_t lanes = hn::Lanes(d), part = kHadamardRegisters * lanes;
  if (n == 2 * lanes) return TransformInRegisters<2>(d, load, store);
  if (n == 4 * lanes) return TransformInRegisters<4>(d, load, store);
  if (n == part) return TransformInRegisters<kHadamardRegisters>(d, load, store);
  for (size_t at = 0; at < n; at += part) {
    Stages<kHadamardRegisters>(
        d, [&](size_t i) HWY_ATTR { return load(at + i); },
        [&](hn::Vec<DF> v, size_t i) HWY_ATTR { hn::StoreU(v, d, scratch + at + i); });
  }
  for (size_t stride = part; stride < n; stride *= 2) WideStage(d, stride, n, scratch);
  const auto factor = hn::Set(d, HadamardScale(n));
  for (size_t i = 0; i < n; i += lanes) store(hn::Mul(hn::LoadU(d, scratch + i), factor), i);
}

#endif

}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVSTOW_KERNELS_TRANSFORM_HADAMARD_INL_H_
