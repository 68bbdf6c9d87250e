// The affine quantizer behind a Hadamard transform, between a page's 16-bit values and codes, once
// for each SIMD target, chosen at run time. A block of values is turned in registers and waits as
// floats in the first-level cache for the scales of its groups.
#include <algorithm>
#include <bit>
#include <cstring>

#include "hwy/cache_control.h"
#include "kernels/page/squared_error.h"
#include "kernels/quantize/loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize/affine_turned_simd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/page/values-inl.h"
#include "kernels/quantize/affine-inl.h"
#include "kernels/transform/hadamard-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace {

#if HWY_TARGET != HWY_SCALAR

using D = hn::CappedTag<float, kSums>;
using V = hn::Vec<D>;
using Rounder = CodeRounder<D>;
using Packer = BytePacker<Rounder::DI>;
using Sums = SquaredSums<D>;

constexpr size_t kLine = 64;  // bytes of a cache line

// Values that are turned together: their groups' scales are one batch.
constexpr size_t kBlock = kSquaredBlock;
static_assert(kBlock / kAffineRawGroup <= kScaleBatch);

// The magnitude of the largest of `count` values, as bits.
HWY_INLINE uint16_t Largest(const uint16_t* raw, size_t count) {
  const hn::ScalableTag<uint16_t> d;
  auto top = hn::Zero(d);
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    top = hn::Max(top, hn::And(hn::LoadU(d, raw + i), hn::Set(d, 0x7fff)));
  }
  return hn::GetLane(hn::MaxOfLanes(d, top));
}

template <class Values>
HWY_INLINE void Turn(const uint16_t* raw, size_t count, const AffineTurn& turn, float* out) {
  const D d;
  for (size_t at = 0; at < count; at += turn.dim) {
    for (size_t line = 0; line < 2 * turn.dim; line += kLine) {
      hwy::Prefetch(reinterpret_cast<const uint8_t*>(raw + at) + kAhead + line);
    }
    TransformBlock(
        d, turn.dim, out + at,
        [&](size_t i) HWY_ATTR {
          return hn::Mul(Values::Load(d, raw + at + i), hn::LoadU(d, turn.signs + i));
        },
        [&](V v, size_t i) HWY_ATTR { hn::Store(v, d, out + at + i); });
  }
}

// Finds the extremes of `groups` groups side by side. Repeats the last up to a multiple of kGroups.
HWY_INLINE void FindExtremes(const float* values, size_t groups, size_t group, float* low,
                             float* high) {
  const D d;
  const BlockTag<D> block;
  constexpr size_t kGroups = kTree<D>;
  for (size_t begin = 0; begin < groups; begin += kGroups) {
    V least[kGroups], most[kGroups];
    for (size_t g = 0; g < kGroups; ++g) {
      const float* const from = values + std::min(begin + g, groups - 1) * group;
      least[g] = most[g] = hn::Load(d, from);
      for (size_t i = hn::Lanes(d); i < group; i += hn::Lanes(d)) {
        const auto v = hn::Load(d, from + i);
        least[g] = hn::Min(least[g], v);
        most[g] = hn::Max(most[g], v);
      }
    }
    hn::Store(ExtremeLanes(d, least, Least()), block, low + begin);
    hn::Store(ExtremeLanes(d, most, Most()), block, high + begin);
  }
}

// Codes of one group, and what they leave of its values.
HWY_INLINE void StoreGroup(const Packer& packer, const Rounder& round, const float* values,
                           size_t group, const ScaleBatch& scales, size_t index, Sums& energy,
                           Sums& error, uint8_t* codes) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const auto minimum = hn::Set(d, scales.minimum[index]), step = hn::Set(d, scales.step[index]);
  const auto inverse = hn::Set(d, scales.inverse[index]);
  const auto rounder = hn::BitCast(d, round.rounder);
  const auto code = [&](size_t i, size_t v) HWY_ATTR {
    const auto value = hn::Load(d, values + i + v * lanes);
    const auto rounded = round(value, minimum, inverse);
    const auto whole = hn::Sub(hn::BitCast(d, rounded), rounder);
    energy.Add(v, value);
    error.Add(v, hn::Sub(value, hn::Add(hn::Mul(whole, step), minimum)));
    return rounded;
  };
  for (size_t i = 0; i < group; i += 4 * lanes) {
    packer.Store({code(i, 0), code(i, 1), code(i, 2), code(i, 3)}, round.rounder, codes + i);
  }
}

template <class Values>
bool Encode(const AffineRaw& g, const AffineTurn& turn, const uint16_t* raw, uint8_t* steps,
            uint8_t* minima, uint8_t* codes, double* energy, double* error) {
  const D d;
  static const Packer packer;
  const uint32_t top = (1u << g.bits) - 1;
  const Rounder round(d, top);
  HWY_ALIGN float turned[kBlock], low[kScaleBatch] = {}, high[kScaleBatch] = {};
  const auto of = [d](const float* extremes) {
    return [=](size_t i) HWY_ATTR { return hn::Load(d, extremes + i); };
  };
  ScaleBatch scales;
  for (size_t left = g.groups * g.group; left > 0;) {
    const size_t count = std::min(kBlock, left), groups = count / g.group;
    if (Largest(raw, count) >= Values::kInf) return false;
    Turn<Values>(raw, count, turn, turned);
    FindExtremes(turned, groups, g.group, low, high);
    if (!MakeScales(d, static_cast<float>(top), of(low), of(high), scales)) return false;
    std::memcpy(steps, scales.steps, 2 * groups);
    std::memcpy(minima, scales.minima, 2 * groups);
    Sums of_values, of_rests;
    for (size_t i = 0; i < groups; ++i, codes += g.group) {
      StoreGroup(packer, round, turned + i * g.group, g.group, scales, i, of_values, of_rests,
                 codes);
    }
    *energy = of_values.Total(*energy);
    *error = of_rests.Total(*error);
    raw += count;
    left -= count;
    steps += 2 * groups;
    minima += 2 * groups;
  }
  return true;
}

template <class Values>
void Decode(const AffineRaw& g, const AffineTurn& turn, const float* steps, const float* minima,
            const uint8_t* codes, uint16_t* raw) {
  const D d;
  HWY_ALIGN float scratch[kBlock];
  const auto shift = static_cast<unsigned>(std::countr_zero(g.group));
  const size_t groups = turn.dim >> shift;
  for (size_t left = g.groups; left > 0; left -= groups) {
    TransformBlock(
        d, turn.dim, scratch,
        [&](size_t i) HWY_ATTR {
          const size_t group = i >> shift;
          return Decoded(d, codes + i, hn::Set(d, steps[group]), hn::Set(d, minima[group]));
        },
        [&](V v, size_t i)
            HWY_ATTR { Values::Store(d, hn::Mul(v, hn::LoadU(d, turn.signs + i)), raw + i); });
    steps += groups;
    minima += groups;
    codes += turn.dim;
    raw += turn.dim;
  }
}

bool EncodeTurned(const AffineRaw& g, const AffineTurn& turn, const uint8_t* raw, uint8_t* steps,
                  uint8_t* minima, uint8_t* codes, double* energy, double* error) {
  const auto* from = reinterpret_cast<const uint16_t*>(raw);
  const auto encode = g.dtype == DType::kF16 ? Encode<F16Values> : Encode<Bf16Values>;
  return encode(g, turn, from, steps, minima, codes, energy, error);
}

void DecodeTurned(const AffineRaw& g, const AffineTurn& turn, const float* steps,
                  const float* minima, const uint8_t* codes, uint8_t* raw) {
  auto* const to = reinterpret_cast<uint16_t*>(raw);
  const auto decode = g.dtype == DType::kF16 ? Decode<F16Values> : Decode<Bf16Values>;
  decode(g, turn, steps, minima, codes, to);
}

const AffineTurnedLoops* Loops() {
  static constexpr AffineTurnedLoops kLoops{EncodeTurned, DecodeTurned};
  return &kLoops;
}

#else  // no vectors

const AffineTurnedLoops* Loops() { return &AffineTurnedLoops::Reference(); }

#endif

}  // namespace
}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(Loops);

const AffineTurnedLoops& AffineTurnedLoops::Best() { return *HWY_DYNAMIC_DISPATCH(Loops)(); }

}  // namespace kvstow
#endif  // HWY_ONCE
