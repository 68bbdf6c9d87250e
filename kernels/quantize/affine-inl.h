// The affine quantizer's loops share this, in files that are compiled once a SIMD target: the
// operations of affine_reference.cc in the same order, no fused multiply-add.
#if defined(KVSTOW_KERNELS_QUANTIZE_AFFINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSTOW_KERNELS_QUANTIZE_AFFINE_INL_H_
#undef KVSTOW_KERNELS_QUANTIZE_AFFINE_INL_H_
#else
#define KVSTOW_KERNELS_QUANTIZE_AFFINE_INL_H_
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "kernels/page/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {

// Halves from here on round to Inf.
constexpr float kHalfOverflow = 65520.0f;

// Minimum and step as fp16 holds them, and what to multiply by.
template <class V>
struct AffineScale {
  V minimum, step, inverse;
};

// Returns the scales of groups with these extremes. Clears `ok` where fp16 cannot hold them.
template <class D, class V>
HWY_INLINE AffineScale<V> ScaleOf(D d, V low, V high, float top, bool& ok) {
  const auto zero = hn::Zero(d);
  low = hn::Add(low, zero);
  AffineScale<V> scale;
  scale.minimum = FloatsOf(d, HalvesOf(d, low));
  const auto range = hn::Add(hn::Max(hn::Sub(high, scale.minimum), zero), zero);
  const auto step = hn::Div(range, hn::Set(d, top));
  scale.step = FloatsOf(d, HalvesOf(d, step));
  scale.inverse = hn::IfThenElseZero(hn::Gt(scale.step, zero), hn::Div(hn::Set(d, 1), scale.step));
  const auto largest = hn::Max(hn::Abs(low), step);
  ok &= hn::AllTrue(d, hn::Lt(largest, hn::Set(d, kHalfOverflow)));
  return scale;
}

// The values of codes.
template <class D>
HWY_INLINE hn::Vec<D> Decoded(D d, const uint8_t* codes, hn::Vec<D> step, hn::Vec<D> minimum) {
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint8_t, D> du8;
  const auto code = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(du8, codes)));
  return hn::Add(hn::Mul(code, step), minimum);
}

#if HWY_TARGET != HWY_SCALAR  // no vectors to interleave

// Scales of groups that are found together.
constexpr size_t kScaleBatch = 32;
struct ScaleBatch {
  HWY_ALIGN uint16_t steps[kScaleBatch], minima[kScaleBatch];  // fp16
  HWY_ALIGN float step[kScaleBatch], minimum[kScaleBatch], inverse[kScaleBatch];
};

// low(i) and high(i) give the extremes of groups i, i + 1, ...
template <class D, class Low, class High>
HWY_INLINE bool MakeScales(D d, float top, Low low, High high, ScaleBatch& out) {
  const hn::Rebind<uint16_t, D> d16;
  bool ok = true;
  for (size_t i = 0; i < kScaleBatch; i += hn::Lanes(d)) {
    const auto scale = ScaleOf(d, low(i), high(i), top, ok);
    hn::Store(HalvesOf(d, scale.step), d16, out.steps + i);
    hn::Store(HalvesOf(d, scale.minimum), d16, out.minima + i);
    hn::Store(scale.step, d, out.step + i);
    hn::Store(scale.minimum, d, out.minimum + i);
    hn::Store(scale.inverse, d, out.inverse + i);
  }
  return ok;
}

struct Most {
  template <class X>
  HWY_INLINE X operator()(X a, X b) const {
    return hn::Max(a, b);
  }
};
struct Least {
  template <class X>
  HWY_INLINE X operator()(X a, X b) const {
    return hn::Min(a, b);
  }
};

template <class D>
using BlockTag = hn::Full128<hn::TFromD<D>>;

// Groups whose extremes are found together: as many as a block of 128 bits has lanes.
template <class D>
constexpr size_t kTree = hn::MaxLanes(BlockTag<D>());

// Lane g: the extreme lane of v[g]. Pairs of vectors are interleaved and merged until each block
// has one lane of each.
template <class Extreme, class D>
HWY_INLINE hn::Vec<BlockTag<D>> ExtremeLanes(D d, hn::Vec<D>* v, Extreme extreme) {
  const BlockTag<D> block;
  for (size_t half = kTree<D> / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) {
      const auto low = hn::InterleaveLower(d, v[i], v[i + half]);
      v[i] = extreme(low, hn::InterleaveUpper(d, v[i], v[i + half]));
    }
  }
  HWY_ALIGN hn::TFromD<D> blocks[hn::MaxLanes(D())];
  hn::Store(v[0], d, blocks);
  auto one = hn::Load(block, blocks);
  for (size_t i = kTree<D>; i < hn::Lanes(d); i += kTree<D>) {
    one = extreme(one, hn::Load(block, blocks + i));
  }
  return one;
}

// Squared sums over a block of squared_error.h, of which D has at most so many lanes.
constexpr size_t kSums = 16;
template <class D>
struct SquaredSums {
  static constexpr size_t kVectors = kSums / hn::MaxLanes(D());

  SquaredSums() { std::fill(sums, sums + kVectors, hn::Zero(D())); }
  // `x` is vector i of the block.
  HWY_INLINE void Add(size_t i, hn::Vec<D> x) {
    sums[i % kVectors] = hn::Add(sums[i % kVectors], hn::Mul(x, x));
  }
  HWY_INLINE double Total(double before) const {
    const D d;
    HWY_ALIGN float partial[kSums];
    for (size_t v = 0; v < kVectors; ++v) hn::Store(sums[v], d, partial + v * hn::MaxLanes(d));
    for (const float sum : partial) before += sum;
    return before;
  }
  hn::Vec<D> sums[kVectors];
};

// Codes as floats: a code above kRounder, which has no places behind the point. Adding it rounds to
// nearest even, and leaves a whole number in the low bits.
template <class D>
struct CodeRounder {
  static constexpr int32_t kRounder = 0x4b000000;  // 2^23
  using DI = hn::RebindToSigned<D>;

  CodeRounder(D, uint32_t top)
      : rounder(hn::Set(DI(), kRounder)),
        last(hn::Set(DI(), kRounder + static_cast<int32_t>(top))) {}
  HWY_INLINE hn::Vec<DI> operator()(hn::Vec<D> value, hn::Vec<D> minimum,
                                    hn::Vec<D> inverse) const {
    const D d;
    const auto scaled = hn::Mul(hn::Sub(value, minimum), inverse);
    const auto rounded = hn::BitCast(DI(), hn::Add(scaled, hn::BitCast(d, rounder)));
    return hn::Min(hn::Max(rounded, rounder), last);
  }
  const hn::Vec<DI> rounder, last;
};

// Bytes of four vectors of 32-bit lanes, vector after vector.
template <class DI>
struct BytePacker {
  BytePacker() {
    for (size_t i = 0; i < sizeof(in_block); ++i) {
      in_block[i] = static_cast<uint8_t>(i % 4 * 4 + i % 16 / 4);
    }
    const size_t blocks = hn::Lanes(DI()) / 4;
    for (size_t i = 0; i < 4 * blocks; ++i) {
      across[i] = static_cast<int32_t>(i % blocks * 4 + i / blocks);
    }
  }
  // `v` are codes as CodeRounder gives them.
  HWY_INLINE void Store(const hn::Vec<DI> (&v)[4], hn::Vec<DI> rounder, uint8_t* codes) const {
    const DI di;
    const auto low = hn::Or(hn::Xor(v[0], rounder), hn::ShiftLeft<8>(v[1]));
    const auto high = hn::Or(hn::ShiftLeft<16>(v[2]), hn::ShiftLeft<24>(v[3]));
    const auto order = hn::BitCast(di, hn::Load(hn::Repartition<uint8_t, DI>(), in_block));
    const auto bytes = hn::TableLookupBytes(hn::Or(low, high), order);
    const auto blocks = hn::SetTableIndices(di, across);
    hn::StoreU(hn::TableLookupLanes(bytes, blocks), di, reinterpret_cast<int32_t*>(codes));
  }
  // Byte 4 k + j of a block to 4 j + k: what lanes of 32 bits hold of vector j stands together.
  HWY_ALIGN uint8_t in_block[4 * hn::MaxLanes(DI())];
  HWY_ALIGN int32_t across[hn::MaxLanes(DI())];
};

#endif

}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVSTOW_KERNELS_QUANTIZE_AFFINE_INL_H_
