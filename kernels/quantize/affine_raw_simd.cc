// The affine quantizer between a page's 16-bit values and bytes at rest, once for each SIMD target,
// chosen at run time. Values are read twice from the first-level cache and never stored as floats.
#include <algorithm>
#include <cstring>

#include "hwy/cache_control.h"
#include "kernels/page/convert.h"
#include "kernels/page/squared_error.h"
#include "kernels/quantize/loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize/affine_raw_simd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/page/values-inl.h"
#include "kernels/quantize/affine-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace {

#if HWY_TARGET != HWY_SCALAR

using D = hn::ScalableTag<float>;
using D16 = hn::ScalableTag<int16_t>;
using V16 = hn::Vec<D16>;
using Rounder = CodeRounder<D>;
using Packer = BytePacker<Rounder::DI>;

// Sign and magnitude to a whole number of the same order, and back.
template <class DI16>
HWY_INLINE hn::Vec<DI16> Ordered(DI16 d, hn::Vec<DI16> x) {
  return hn::Xor(x, hn::And(hn::ShiftRight<15>(x), hn::Set(d, 0x7fff)));
}

// Bits of the smallest and the largest value of each of `count` groups; up to a multiple of
// kGroups, those of the last are repeated. False when a value is not finite.
HWY_INLINE bool FindExtremes(const uint16_t* raw, size_t count, size_t group, uint16_t inf,
                             int16_t* low, int16_t* high) {
  const D16 d;
  const BlockTag<D16> block;
  constexpr size_t kGroups = kTree<D16>;
  const size_t lanes = hn::Lanes(d);
  auto top = hn::Zero(d);
  for (size_t begin = 0; begin < count; begin += kGroups) {
    V16 least[kGroups], most[kGroups];
    for (size_t g = 0; g < kGroups; ++g) {
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
    hn::Store(Ordered(block, ExtremeLanes(d, least, Least())), block, low + begin);
    hn::Store(Ordered(block, ExtremeLanes(d, most, Most())), block, high + begin);
  }
  return hn::AllTrue(d, hn::Lt(top, hn::Set(d, static_cast<int16_t>(inf))));
}

template <class Values>
HWY_INLINE void StoreGroup(const Packer& packer, const Rounder& round, const uint16_t* raw,
                           size_t group, float minimum, float inverse, uint8_t* codes) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const auto m = hn::Set(d, minimum), f = hn::Set(d, inverse);
  const auto code = [&](size_t i) HWY_ATTR { return round(Values::Load(d, raw + i), m, f); };
  for (size_t i = 0; i < group; i += 4 * lanes) {
    packer.Store({code(i), code(i + lanes), code(i + 2 * lanes), code(i + 3 * lanes)},
                 round.rounder, codes + i);
  }
}

template <class Values>
bool Encode(const AffineRaw& g, const uint16_t* raw, uint8_t* steps, uint8_t* minima,
            uint8_t* codes) {
  const D d;
  const uint32_t top = (1u << g.bits) - 1;
  static const Packer packer;
  const Rounder round(d, top);
  HWY_ALIGN int16_t low[kScaleBatch] = {}, high[kScaleBatch] = {};
  const auto of = [&](const int16_t* extremes) {
    return [=](size_t i) HWY_ATTR {
      return Values::Load(d, reinterpret_cast<const uint16_t*>(extremes + i));
    };
  };
  ScaleBatch scales;
  for (size_t begin = 0; begin < g.groups; begin += kScaleBatch) {
    const size_t count = std::min(kScaleBatch, g.groups - begin);
    if (!FindExtremes(raw, count, g.group, Values::kInf, low, high) ||
        !MakeScales(d, static_cast<float>(top), of(low), of(high), scales)) {
      return false;
    }
    std::memcpy(steps + 2 * begin, scales.steps, 2 * count);
    std::memcpy(minima + 2 * begin, scales.minima, 2 * count);
    for (size_t i = 0; i < count; ++i, raw += g.group, codes += g.group) {
      StoreGroup<Values>(packer, round, raw, g.group, scales.minimum[i], scales.inverse[i], codes);
    }
  }
  return true;
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

template <class Values>
void Measure(const AffineRaw& g, const uint16_t* raw, const float* steps, const float* minima,
             const uint8_t* codes, double* energy, double* error) {
  const hn::CappedTag<float, kSums> d;
  using Sums = SquaredSums<decltype(d)>;
  const size_t values = g.groups * g.group;
  for (size_t begin = 0; begin < values; begin += kSquaredBlock) {
    const size_t end = std::min(values, begin + kSquaredBlock);
    Sums of_values, of_rests;
    for (size_t at = begin; at < end; at += kAffineRawGroup) {
      const auto step = hn::Set(d, steps[at / g.group]), minimum = hn::Set(d, minima[at / g.group]);
      for (size_t i = 0; i < kAffineRawGroup / hn::MaxLanes(d); ++i) {
        const size_t first = at + i * hn::MaxLanes(d);
        const auto x = Values::Load(d, raw + first);
        of_values.Add(i, x);
        of_rests.Add(i, hn::Sub(x, Decoded(d, codes + first, step, minimum)));
      }
    }
    *energy = of_values.Total(*energy);
    *error = of_rests.Total(*error);
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

const AffineRawLoops* Loops() {
  static constexpr AffineRawLoops kLoops{EncodeRaw, DecodeRaw, MeasureRaw};
  return &kLoops;
}

#else  // no vectors to interleave

const AffineRawLoops* Loops() { return &AffineRawLoops::Reference(); }

#endif

}  // namespace
}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(Loops);

const AffineRawLoops& AffineRawLoops::Best() { return *HWY_DYNAMIC_DISPATCH(Loops)(); }

}  // namespace kvstow
#endif  // HWY_ONCE
