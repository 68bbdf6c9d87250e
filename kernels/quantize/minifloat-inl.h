// Vectors of F32 to and from small floats, for the files that are compiled once a SIMD target: the
// codes of e4m3.h and of FloatToE2M1, one in each 32-bit lane.
#if defined(KVSTOW_KERNELS_QUANTIZE_MINIFLOAT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSTOW_KERNELS_QUANTIZE_MINIFLOAT_INL_H_
#undef KVSTOW_KERNELS_QUANTIZE_MINIFLOAT_INL_H_
#else
#define KVSTOW_KERNELS_QUANTIZE_MINIFLOAT_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/quantize/block_scales.h"
#include "kernels/quantize/e4m3.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// To nearest even: the code of `magnitude`, which is not beyond the largest, with the sign of
// `value`. A code is a sign, kExponent bits of exponent, biased as in IEEE 754, and kMantissa bits
// of mantissa.
template <int kExponent, int kMantissa, class D>
HWY_INLINE hn::Vec<hn::RebindToSigned<D>> MinifloatCodes(D d, hn::Vec<D> value,
                                                         hn::Vec<D> magnitude) {
  constexpr int kBias = (1 << (kExponent - 1)) - 1, kSign = kExponent + kMantissa;
  constexpr int kDropped = 23 - kMantissa;
  constexpr int32_t kNormal = (128 - kBias) << 23;  // bits of the smallest normal value
  const hn::RebindToSigned<D> di;
  const hn::RebindToUnsigned<D> du;
  // Denormals are multiples of one step: adding 2^23 of it rounds to a whole number of them.
  const auto rounder = hn::Set(di, kNormal + (kDropped << 23));
  const auto shifted = hn::Add(magnitude, hn::BitCast(d, rounder));
  const auto denormal = hn::Xor(hn::BitCast(di, shifted), rounder);
  const auto bits = hn::BitCast(di, magnitude);
  const auto odd = hn::And(hn::ShiftRight<kDropped>(bits), hn::Set(di, 1));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(di, (1 << (kDropped - 1)) - 1)), odd);
  const auto normal =
      hn::Sub(hn::ShiftRight<kDropped>(rounded), hn::Set(di, (127 - kBias) << kMantissa));
  const auto small = hn::Lt(bits, hn::Set(di, kNormal));
  const auto sign = hn::And(hn::ShiftRight<31 - kSign>(hn::BitCast(du, value)),
                            hn::Set(du, uint32_t{1} << kSign));
  return hn::Or(hn::IfThenElse(small, denormal, normal), hn::BitCast(di, sign));
}

// As FloatToE4M3.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToSigned<D>> E4M3Codes(D d, hn::Vec<D> value) {
  return MinifloatCodes<4, 3>(d, value, hn::Min(hn::Abs(value), hn::Set(d, kMaxE4M3)));
}

// As FloatToE2M1, for which NaN has the magnitude 0.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToSigned<D>> E2M1Codes(D d, hn::Vec<D> value) {
  const auto magnitude = hn::Min(hn::Abs(value), hn::Set(d, kMaxE2M1));
  return MinifloatCodes<2, 1>(d, value, hn::IfThenElseZero(hn::Eq(value, value), magnitude));
}

// As E4M3ToFloat; `low` are the codes without their sign.
template <class D>
HWY_INLINE hn::Vec<D> E4M3Values(D d, hn::Vec<hn::RebindToUnsigned<D>> code,
                                 hn::Vec<hn::RebindToUnsigned<D>> low) {
  // Exponents move by a multiplication, which is exact for denormals too.
  const auto magnitude = hn::Mul(hn::BitCast(d, hn::ShiftLeft<20>(low)), hn::Set(d, 0x1p120f));
  return hn::Or(magnitude, hn::BitCast(d, hn::ShiftLeft<24>(hn::Xor(code, low))));
}

}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVSTOW_KERNELS_QUANTIZE_MINIFLOAT_INL_H_
