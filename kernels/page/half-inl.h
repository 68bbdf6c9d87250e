// Converts vectors of F32 to and from the bits of fp16, for the files that are compiled once for
// each SIMD target.
//
// Rounds to nearest even, denormals included, overflow to Inf, as half.h does. Highway's own
// conversion does so where the target has an instruction for it. Elsewhere it rounds otherwise, so
// this file computes the bits.
#if defined(KVSTOW_KERNELS_HALF_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSTOW_KERNELS_HALF_INL_H_
#undef KVSTOW_KERNELS_HALF_INL_H_
#else
#define KVSTOW_KERNELS_HALF_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using Halves = hn::Vec<hn::Rebind<uint16_t, D>>;

template <class D>
HWY_INLINE hn::Vec<D> FloatsOf(D d, Halves<D> halves) {
  const hn::Rebind<hwy::float16_t, D> dh;
  return hn::PromoteTo(d, hn::BitCast(dh, halves));
}

// `values` are finite.
template <class D>
HWY_INLINE Halves<D> HalvesOf([[maybe_unused]] D d, hn::Vec<D> values) {
  const hn::Rebind<uint16_t, D> du16;
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SSSE3 || \
    HWY_TARGET == HWY_SSE4
  const hn::RebindToSigned<D> di;
  const auto x = hn::BitCast(di, hn::Abs(values));
  const auto odd = hn::And(hn::ShiftRight<13>(x), hn::Set(di, 1));
  const auto rounded = hn::Add(hn::Add(x, hn::Set(di, 0xfff - 0x38000000)), odd);
  const auto normal = hn::ShiftRight<13>(rounded);
  // Adding 0.5, whose last place is 2^-24, rounds to a denormal half.
  const auto shifted = hn::Add(hn::Abs(values), hn::Set(d, 0.5f));
  const auto denormal = hn::Sub(hn::BitCast(di, shifted), hn::Set(di, 0x3f000000));
  auto half = hn::IfThenElse(hn::Lt(x, hn::Set(di, 0x38800000)), denormal, normal);
  half = hn::IfThenElse(hn::Gt(x, hn::Set(di, 0x477fffff)), hn::Set(di, 0x7c00), half);
  const hn::RebindToUnsigned<D> du;
  const auto sign = hn::ShiftRight<16>(hn::BitCast(du, hn::Xor(values, hn::Abs(values))));
  return hn::DemoteTo(du16, hn::Or(half, hn::BitCast(di, sign)));
#else
  const hn::Rebind<hwy::float16_t, D> dh;
  return hn::BitCast(du16, hn::DemoteTo(dh, values));
#endif
}

}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVSTOW_KERNELS_HALF_INL_H_
