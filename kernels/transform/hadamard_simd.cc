// The Hadamard transform, once for each SIMD target, chosen at run time.
#include "kernels/transform/loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/transform/hadamard_simd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/transform/hadamard-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

const HadamardLoops* Loops() { return &HadamardLoops::Reference(); }

#else

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// `before` and `after` are signs, or null.
HWY_INLINE void Block(D d, size_t n, const float* before, const float* after, float* x) {
  const auto load = [&](size_t i) HWY_ATTR {
    const auto v = hn::LoadU(d, x + i);
    return before == nullptr ? v : hn::Mul(v, hn::LoadU(d, before + i));
  };
  const auto store = [&](V v, size_t i) HWY_ATTR {
    hn::StoreU(after == nullptr ? v : hn::Mul(v, hn::LoadU(d, after + i)), d, x + i);
  };
  if (n == hn::Lanes(d)) return TransformInRegisters<1>(d, load, store);
  TransformBlock(d, n, x, load, store);
}

void Blocks(size_t count, size_t dim, float* values, const float* before, const float* after) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t v = 0; v < count; ++v, values += dim) {
    for (size_t at = 0; at < dim; at += std::bit_floor(dim - at)) {
      const size_t n = std::bit_floor(dim - at);
      const float* const first = before == nullptr ? nullptr : before + at;
      const float* const last = after == nullptr ? nullptr : after + at;
      if (n < lanes) {
        HadamardLoops::Reference().blocks(1, n, values + at, first, last);
      } else {
        Block(d, n, first, last, values + at);
      }
    }
  }
}

const HadamardLoops* Loops() {
  static constexpr HadamardLoops kLoops{Blocks};
  return &kLoops;
}

#endif

}  // namespace
}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(Loops);

const HadamardLoops& HadamardLoops::Best() { return *HWY_DYNAMIC_DISPATCH(Loops)(); }

}  // namespace kvstow
#endif  // HWY_ONCE
