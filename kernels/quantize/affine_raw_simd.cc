// The affine quantizer between a page's 16-bit values and bytes at rest, once for each SIMD target,
// chosen at run time. Values are read twice from the first-level cache and never stored as floats.
#include <algorithm>
#include <cstring>

#include "hwy/cache_control.h"
#include "kernels/convert.h"
#include "kernels/quantize/affine.h"
#include "kernels/squared_error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize/affine_raw_simd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using DI = hn::RebindToSigned<D>;
using D16 = hn::ScalableTag<int16_t>;
using V16 = hn::Vec<D16>;
using D8x16 = hn::Full128<int16_t>;  // eight 16-bit lanes

constexpr float kHalfOverflow = 65520.0f;  // halves from here on round to Inf
constexpr size_t kBatch = 32;              // groups whose scales are made in one go
constexpr size_t kTree = 8;                // groups whose extremes are found together

// Sign and magnitude to a whole number of the same order, and back.
template <class DI16>
HWY_INLINE hn::Vec<DI16> Ordered(DI16 d, hn::Vec<DI16> x) {
  return hn::Xor(x, hn::And(hn::ShiftRight<15>(x), hn::Set(d, 0x7fff)));
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

// out[g] = the extreme lane of v[g], as bits of a value: pairs of vectors are interleaved and
// merged until each 128-bit block has one lane of each.
template <class Extreme>
HWY_INLINE void ExtremeLanes(V16* v, int16_t* out, Extreme extreme) {
  const D16 d;
  const D8x16 d8;
  for (size_t half = kTree / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) {
      const auto low = hn::InterleaveLower(d, v[i], v[i + half]);
      v[i] = extreme(low, hn::InterleaveUpper(d, v[i], v[i + half]));
    }
  }
  HWY_ALIGN int16_t blocks[hn::MaxLanes(D16())];
  hn::Store(v[0], d, blocks);
  auto one = hn::Load(d8, blocks);
  for (size_t i = kTree; i < hn::Lanes(d); i += kTree) one = extreme(one, hn::Load(d8, blocks + i));
  hn::Store(Ordered(d8, one), d8, out);
}

// Bits of the smallest and the largest value of each of `count` groups; up to a multiple of kTree,
// those of the last are repeated. False when a value is not finite.
HWY_INLINE bool FindExtremes(const uint16_t* raw, size_t count, size_t group, uint16_t inf,
                             int16_t* low, int16_t* high) {
  const D16 d;
  const size_t lanes = hn::Lanes(d);
  auto top = hn::Zero(d);
  for (size_t begin = 0; begin < count; begin += kTree) {
    V16 least[kTree], most[kTree];
    for (size_t g = 0; g < kTree; ++g) {
      const auto* from =
          reinterpret_cast<const int16_t*>(raw + std::min(begin + g, count - 1) * group);
      least[g] = most[g] = Ordered(d, hn::LoadU(d, from));
      hwy::Prefetch(from + kAhead / sizeof(*from));
      hwy::Prefetch(from + kAhead / sizeof(*from) + 32);
      for (size_t i = lanes; i < group; i += lanes) {
        const auto x = Ordered(d, hn::LoadU(d, from + i));
        least[g] = hn::Min(least[g], x);
        most[g] = hn::Max(most[g], x);
      }
      // The inverse of a negative ordered number is its magnitude.
      top = hn::Max(top, hn::Max(most[g], hn::Not(least[g])));
    }
    ExtremeLanes(least, low + begin, Least());
    ExtremeLanes(most, high + begin, Most());
  }
  return hn::AllTrue(d, hn::Lt(top, hn::Set(d, static_cast<int16_t>(inf))));
}

struct Scales {
  HWY_ALIGN uint16_t steps[kBatch], minima[kBatch];  // fp16
  HWY_ALIGN float minimum[kBatch], inverse[kBatch];
};

// As ScaleOf of affine_simd.cc.
template <class Values>
HWY_INLINE bool MakeScales(const int16_t* low, const int16_t* high, float top, Scales& out) {
  const D d;
  const hn::Rebind<uint16_t, D> d16;
  const auto zero = hn::Zero(d);
  bool ok = true;
  for (size_t i = 0; i < kBatch; i += hn::Lanes(d)) {
    const auto least = hn::Add(Values::Load(d, reinterpret_cast<const uint16_t*>(low + i)), zero);
    const auto most = Values::Load(d, reinterpret_cast<const uint16_t*>(high + i));
    const auto minimum = HalvesOf(d, least);
    const auto m = FloatsOf(d, minimum);
    const auto range = hn::Add(hn::Max(hn::Sub(most, m), zero), zero);
    const auto exact = hn::Div(range, hn::Set(d, top));
    const auto step = HalvesOf(d, exact);
    const auto s = FloatsOf(d, step);
    hn::Store(minimum, d16, out.minima + i);
    hn::Store(step, d16, out.steps + i);
    hn::Store(m, d, out.minimum + i);
    hn::Store(hn::IfThenElseZero(hn::Gt(s, zero), hn::Div(hn::Set(d, 1), s)), d, out.inverse + i);
    ok &= hn::AllTrue(d, hn::Lt(hn::Max(hn::Abs(least), exact), hn::Set(d, kHalfOverflow)));
  }
  return ok;
}

// Bytes of four vectors of 32-bit lanes, vector after vector.
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
  // Byte 4 k + j of a block to 4 j + k: what lanes of 32 bits hold of vector j stands together.
  HWY_ALIGN uint8_t in_block[hn::MaxLanes(hn::ScalableTag<uint8_t>())];
  HWY_ALIGN int32_t across[hn::MaxLanes(DI())];
};

template <class Values>
HWY_INLINE void StoreGroup(const BytePacker& packer, const uint16_t* raw, size_t group,
                           float minimum, float inverse, uint32_t top, uint8_t* codes) {
  const D d;
  const DI di;
  const size_t lanes = hn::Lanes(d);
  const auto m = hn::Set(d, minimum), f = hn::Set(d, inverse);
  // 2^23 has no places behind the point: adding it rounds to nearest even, and leaves a whole
  // number in the low bits.
  constexpr int32_t kRounder = 0x4b000000;
  const auto rounder = hn::Set(di, kRounder);
  const auto last = hn::Set(di, kRounder + static_cast<int32_t>(top));
  const auto code = [&](size_t i) HWY_ATTR {
    const auto scaled = hn::Mul(hn::Sub(Values::Load(d, raw + i), m), f);
    const auto rounded = hn::BitCast(di, hn::Add(scaled, hn::BitCast(d, rounder)));
    return hn::Min(hn::Max(rounded, rounder), last);
  };
  const auto in_block = hn::BitCast(di, hn::Load(hn::ScalableTag<uint8_t>(), packer.in_block));
  const auto across = hn::SetTableIndices(di, packer.across);
  for (size_t i = 0; i < group; i += 4 * lanes) {
    const auto a = hn::Xor(code(i), rounder), b = hn::ShiftLeft<8>(code(i + lanes));
    const auto c = hn::ShiftLeft<16>(code(i + 2 * lanes));
    const auto e = hn::ShiftLeft<24>(code(i + 3 * lanes));
    const auto bytes = hn::TableLookupBytes(hn::Or(hn::Or(a, b), hn::Or(c, e)), in_block);
    hn::StoreU(hn::TableLookupLanes(bytes, across), di, reinterpret_cast<int32_t*>(codes + i));
  }
}

template <class Values>
bool Encode(const AffineRaw& g, const uint16_t* raw, uint8_t* steps, uint8_t* minima,
            uint8_t* codes) {
  const uint32_t top = (1u << g.bits) - 1;
  static const BytePacker packer;
  HWY_ALIGN int16_t low[kBatch] = {}, high[kBatch] = {};
  Scales scales;
  for (size_t begin = 0; begin < g.groups; begin += kBatch) {
    const size_t count = std::min(kBatch, g.groups - begin);
    if (!FindExtremes(raw, count, g.group, Values::kInf, low, high) ||
        !MakeScales<Values>(low, high, static_cast<float>(top), scales)) {
      return false;
    }
    std::memcpy(steps + 2 * begin, scales.steps, 2 * count);
    std::memcpy(minima + 2 * begin, scales.minima, 2 * count);
    for (size_t i = 0; i < count; ++i, raw += g.group, codes += g.group) {
      StoreGroup<Values>(packer, raw, g.group, scales.minimum[i], scales.inverse[i], top, codes);
    }
  }
  return true;
}

template <class DF>
HWY_INLINE hn::Vec<DF> Decoded(DF d, const uint8_t* codes, hn::Vec<DF> step, hn::Vec<DF> minimum) {
  const hn::RebindToSigned<DF> di;
  const hn::Rebind<uint8_t, DF> du8;
  const auto code = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(du8, codes)));
  return hn::Add(hn::Mul(code, step), minimum);
}

template <class Values>
void Decode(const AffineRaw& g, const float* steps, const float* minima, const uint8_t* codes,
            uint16_t* raw) {
  const D d;
  const size_t groups = g.groups, group = g.group;
  for (size_t i = 0; i < groups; ++i, codes += group, raw += group) {
    const auto s = hn::Set(d, steps[i]), m = hn::Set(d, minima[i]);
    hwy::Prefetch(codes + kAhead);
    for (size_t at = 0; at < group; at += hn::Lanes(d)) {
      Values::Store(d, Decoded(d, codes + at, s, m), raw + at);
    }
  }
}

constexpr size_t kSums = 16;  // of a block, as squared_error.cc has them

// Sums over `count` values of one group, a multiple of kSums.
template <class Values, class DS, class Sums>
HWY_INLINE void AddSquares(DS d, const uint16_t* raw, const uint8_t* codes, size_t count,
                           hn::Vec<DS> step, hn::Vec<DS> minimum, Sums& energy, Sums& error) {
  constexpr size_t kLanes = hn::MaxLanes(d);
  for (size_t at = 0; at < count; at += kSums) {
    for (size_t v = 0; v < kSums / kLanes; ++v) {
      const auto x = Values::Load(d, raw + at + v * kLanes);
      const auto e = hn::Sub(x, Decoded(d, codes + at + v * kLanes, step, minimum));
      energy[v] = hn::Add(energy[v], hn::Mul(x, x));
      error[v] = hn::Add(error[v], hn::Mul(e, e));
    }
  }
}

template <class DS, class Sums>
HWY_INLINE double Total(DS d, double before, const Sums& sums) {
  HWY_ALIGN float partial[kSums];
  for (size_t v = 0; v < kSums / hn::MaxLanes(d); ++v) {
    hn::Store(sums[v], d, partial + v * hn::MaxLanes(d));
  }
  for (const float sum : partial) before += sum;
  return before;
}

template <class Values>
void Measure(const AffineRaw& g, const uint16_t* raw, const float* steps, const float* minima,
             const uint8_t* codes, double* energy, double* error) {
  const hn::CappedTag<float, kSums> d;
  using Sums = hn::Vec<decltype(d)>[kSums / hn::MaxLanes(d)];
  const size_t values = g.groups * g.group;
  for (size_t begin = 0; begin < values; begin += kSquaredBlock) {
    const size_t end = std::min(values, begin + kSquaredBlock);
    Sums of_values, of_rests;
    std::fill(std::begin(of_values), std::end(of_values), hn::Zero(d));
    std::fill(std::begin(of_rests), std::end(of_rests), hn::Zero(d));
    for (size_t at = begin; at < end; at += kAffineRawGroup) {
      const size_t i = at / g.group;
      AddSquares<Values>(d, raw + at, codes + at, kAffineRawGroup, hn::Set(d, steps[i]),
                         hn::Set(d, minima[i]), of_values, of_rests);
    }
    *energy = Total(d, *energy, of_values);
    *error = Total(d, *error, of_rests);
  }
}

bool EncodeRaw(const AffineRaw& g, const uint8_t* raw, uint8_t* steps, uint8_t* minima,
               uint8_t* codes) {
  const auto* from = reinterpret_cast<const uint16_t*>(raw);
  return g.dtype == DType::kF16 ? Encode<F16Values>(g, from, steps, minima, codes)
                                : Encode<Bf16Values>(g, from, steps, minima, codes);
}

void DecodeRaw(const AffineRaw& g, const float* steps, const float* minima, const uint8_t* codes,
               uint8_t* raw) {
  auto* const to = reinterpret_cast<uint16_t*>(raw);
  if (g.dtype == DType::kF16) return Decode<F16Values>(g, steps, minima, codes, to);
  Decode<Bf16Values>(g, steps, minima, codes, to);
}

void MeasureRaw(const AffineRaw& g, const uint8_t* raw, const float* steps, const float* minima,
                const uint8_t* codes, double* energy, double* error) {
  const auto* from = reinterpret_cast<const uint16_t*>(raw);
  if (g.dtype == DType::kF16) {
    return Measure<F16Values>(g, from, steps, minima, codes, energy, error);
  }
  Measure<Bf16Values>(g, from, steps, minima, codes, energy, error);
}

#else  // no vectors to interleave

bool EncodeRaw(const AffineRaw& g, const uint8_t* raw, uint8_t* steps, uint8_t* minima,
               uint8_t* codes) {
  return AffineEncodeRawReference(g, raw, steps, minima, codes);
}

void DecodeRaw(const AffineRaw& g, const float* steps, const float* minima, const uint8_t* codes,
               uint8_t* raw) {
  AffineDecodeRawReference(g, steps, minima, codes, raw);
}

void MeasureRaw(const AffineRaw& g, const uint8_t* raw, const float* steps, const float* minima,
                const uint8_t* codes, double* energy, double* error) {
  AffineMeasureRawReference(g, raw, steps, minima, codes, energy, error);
}

#endif

}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(EncodeRaw);
HWY_EXPORT(DecodeRaw);
HWY_EXPORT(MeasureRaw);

bool AffineEncodeRaw(const AffineRaw& g, const uint8_t* raw, uint8_t* steps, uint8_t* minima,
                     uint8_t* codes) {
  return HWY_DYNAMIC_DISPATCH(EncodeRaw)(g, raw, steps, minima, codes);
}

void AffineDecodeRaw(const AffineRaw& g, const float* steps, const float* minima,
                     const uint8_t* codes, uint8_t* raw) {
  HWY_DYNAMIC_DISPATCH(DecodeRaw)(g, steps, minima, codes, raw);
}

void AffineMeasureRaw(const AffineRaw& g, const uint8_t* raw, const float* steps,
                      const float* minima, const uint8_t* codes, double* energy, double* error) {
  HWY_DYNAMIC_DISPATCH(MeasureRaw)(g, raw, steps, minima, codes, energy, error);
}

}  // namespace kvstow
#endif  // HWY_ONCE
