// E4M3 codes, once for each SIMD target, chosen at run time: the bytes of the scalar reference.
#include "kernels/quantize/loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize/minifloat_simd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/quantize/minifloat-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace {

using D = hn::ScalableTag<float>;

void Encode(const float* values, size_t count, size_t dim, const float* tops, uint8_t* codes) {
  const D d;
  const hn::Rebind<uint8_t, D> du8;
  const size_t lanes = hn::Lanes(d);
  for (size_t v = 0; v < count; ++v, values += dim, codes += dim) {
    const float scale = tops[v] > 0 ? kMaxE4M3 / tops[v] : 0.0f;
    size_t i = 0;
    for (; i + lanes <= dim; i += lanes) {
      const auto code = E4M3Codes(d, hn::Mul(hn::LoadU(d, values + i), hn::Set(d, scale)));
      hn::StoreU(hn::DemoteTo(du8, code), du8, codes + i);
    }
    for (; i < dim; ++i) codes[i] = FloatToE4M3(values[i] * scale);
  }
}

bool Decode(const uint8_t* codes, size_t count, size_t dim, const float* tops, float* values) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint8_t, D> du8;
  const size_t lanes = hn::Lanes(d);
  bool ok = true;
  auto largest = hn::Zero(du);
  for (size_t v = 0; v < count; ++v, values += dim, codes += dim) {
    const float scale = tops[v] / kMaxE4M3;
    size_t i = 0;
    for (; i + lanes <= dim; i += lanes) {
      const auto code = hn::PromoteTo(du, hn::LoadU(du8, codes + i));
      const auto low = hn::And(code, hn::Set(du, 0x7f));
      largest = hn::Max(largest, low);
      hn::StoreU(hn::Mul(E4M3Values(d, code, low), hn::Set(d, scale)), d, values + i);
    }
    for (; i < dim; ++i) {
      ok &= (codes[i] & 0x7f) != 0x7f;
      values[i] = E4M3ToFloat(codes[i]) * scale;
    }
  }
  const hn::RebindToSigned<D> di;
  return ok && hn::AllTrue(di, hn::Lt(hn::BitCast(di, largest), hn::Set(di, 0x7f)));
}

const MinifloatLoops* Loops() {
  static constexpr MinifloatLoops kLoops{Encode, Decode};
  return &kLoops;
}

}  // namespace
}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(Loops);

const MinifloatLoops& MinifloatLoops::Best() { return *HWY_DYNAMIC_DISPATCH(Loops)(); }

}  // namespace kvstow
#endif  // HWY_ONCE
