// Converts vectors of F32 to and from a page's 16-bit values, for the files that are compiled once
// for each SIMD target. Storing rounds to nearest even and saturates to the largest finite value.
#if defined(KVSTOW_KERNELS_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSTOW_KERNELS_VALUES_INL_H_
#undef KVSTOW_KERNELS_VALUES_INL_H_
#else
#define KVSTOW_KERNELS_VALUES_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/page/half-inl.h"
#include "kernels/page/half.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {

// Loops over a page, or over its codes, prefetch so many bytes ahead. The processor's own prefetch
// ends at the end of a page of memory.
constexpr size_t kAhead = 2048;

struct F16Values {
  static constexpr uint16_t kInf = 0x7c00;  // bits; magnitudes below are finite

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const uint16_t* from) {
    return FloatsOf(d, hn::LoadU(hn::Rebind<uint16_t, D>(), from));
  }

  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> values, uint16_t* to) {
    const auto most = hn::Set(d, kMaxHalf), least = hn::Set(d, -kMaxHalf);
    const auto finite = hn::Min(hn::Max(values, least), most);
    hn::StoreU(HalvesOf(d, finite), hn::Rebind<uint16_t, D>(), to);
  }
};

struct Bf16Values {
  static constexpr uint16_t kInf = 0x7f80;

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const uint16_t* from) {
    const hn::RebindToUnsigned<D> du32;
    const auto bits = hn::PromoteTo(du32, hn::LoadU(hn::Rebind<uint16_t, D>(), from));
    return hn::BitCast(d, hn::ShiftLeft<16>(bits));
  }

  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> values, uint16_t* to) {
    const hn::RebindToUnsigned<D> du32;
    const hn::RebindToSigned<D> di32;
    const hn::Rebind<uint16_t, D> du16;
    const auto most = hn::Set(d, kMaxBf16), least = hn::Set(d, -kMaxBf16);
    const auto bits = hn::BitCast(du32, hn::Min(hn::Max(values, least), most));
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du32, 1));
    const auto rounded = hn::Add(hn::Add(bits, hn::Set(du32, 0x7fff)), odd);
    hn::StoreU(hn::DemoteTo(du16, hn::BitCast(di32, hn::ShiftRight<16>(rounded))), du16, to);
  }
};

}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVSTOW_KERNELS_VALUES_INL_H_
