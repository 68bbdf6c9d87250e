// The look-ups that the vector loops of the plane coder share, in the tables of a stream's steps
// (plane_steps-inl.h). Files that are compiled for each SIMD target include it.
#if defined(KVSTOW_KERNELS_ENTROPY_PLANE_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSTOW_KERNELS_ENTROPY_PLANE_VECTORS_INL_H_
#undef KVSTOW_KERNELS_ENTROPY_PLANE_VECTORS_INL_H_
#else
#define KVSTOW_KERNELS_ENTROPY_PLANE_VECTORS_INL_H_
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "kernels/entropy/plane_loops.h"
#include "kernels/entropy/plane_steps-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Returns table[indices] for a table of 4 or kPlaneSymbols entries.

HWY_INLINE V Find4(const uint32_t* table, V indices) {
  const D d;
  if constexpr (kLanes >= 4) {
    return hn::TableLookupLanes(hn::LoadDup128(d, table), hn::IndicesFromVec(d, indices));
  } else {
    return hn::GatherIndex(d, table, hn::BitCast(DI(), indices));
  }
}

#if HWY_TARGET == HWY_AVX2
// Eight of its entries; the upper bits of an index count for nothing.
HWY_INLINE __m256i Find8(const uint32_t* table, V indices) {
  return _mm256_permutevar8x32_epi32(hn::Load(D(), table).raw, indices.raw);
}
// `high` where bit kBit of an index is set.
template <int kBit>
HWY_INLINE __m256i Choose(__m256i low, __m256i high, V indices) {
  return _mm256_castps_si256(
      _mm256_blendv_ps(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high),
                       _mm256_castsi256_ps(hn::ShiftLeft<31 - kBit>(indices).raw)));
}
#endif

HWY_INLINE V Find16(const uint32_t* table, V indices) {
#if HWY_TARGET == HWY_AVX2  // a gather takes several times as long
  return V{Choose<3>(Find8(table, indices), Find8(table + 8, indices), indices)};
#else
  const D d;
  if constexpr (kLanes == 16) {
    return hn::TableLookupLanes(hn::Load(d, table), hn::IndicesFromVec(d, indices));
  } else {
    return hn::GatherIndex(d, table, hn::BitCast(DI(), indices));
  }
#endif
}

HWY_INLINE M Above(V a, V b) {  // both below 2^31
  const DI di;
  return hn::RebindMask(D(), hn::Gt(hn::BitCast(di, a), hn::BitCast(di, b)));
}

HWY_INLINE V Magnitudes(VI values) { return hn::BitCast(D(), hn::Abs(values)); }

// The look-ups of a step's lanes at one level, all by one row. Begin takes the row of a
// coefficient, before it is shifted and clamped, and the share of its positive signs: half of them,
// unless kTilted. Move goes to a step.
template <bool kTilted>
class Tables {
 public:
  HWY_INLINE explicit Tables(const PlaneLookups::Level& level) : level_(level) {}
  HWY_INLINE void Begin(int row, uint32_t share = kEvenShare) { begun_ = row, share_ = share; }
  HWY_INLINE void Move(const Step& step) {
    row_ = &level_[static_cast<size_t>(std::clamp(begun_ + step.shift, 0, kPlaneMaxRow))];
  }
  HWY_INLINE uint32_t escape() const { return row_->escape; }
  HWY_INLINE uint32_t raw_bits() const { return row_->raw_bits; }
  HWY_INLINE V Before(size_t k) const { return hn::Set(D(), row_->before[k]); }
  HWY_INLINE V Symbol(V symbol) const { return Find16(row_->symbols, symbol); }
  HWY_INLINE V Zero(V context) const { return Find4(row_->zero, context); }
  HWY_INLINE V Centre(V magnitude) const { return Find16(row_->centre, magnitude); }
  // The positive part of twice `half`: PositivePart.
  HWY_INLINE V Positive(V half) const {
    if constexpr (!kTilted) return half;
    const D d;
    const auto others =
        hn::Mul(hn::Sub(hn::Add(half, half), hn::Set(d, uint32_t{2})), hn::Set(d, share_));
    return hn::Add(hn::ShiftRight<8>(hn::Add(others, hn::Set(d, kEvenShare))),
                   hn::Set(d, uint32_t{1}));
  }

 private:
  const PlaneLookups::Level& level_;
  const PlaneLookups::Row* row_ = nullptr;
  int begun_ = 0;
  uint32_t share_ = kEvenShare;
};

// For bits that refine magnitudes `coarse`: the share of the slots of a 0, of a 1, and of a 1 that
// brings no negative sign.
template <bool kTilted>
HWY_INLINE void Refine(const Tables<kTilted>& tables, V coarse, V& zero, V& one, V& positive) {
  const D d;
  zero = tables.Zero(hn::Min(coarse, hn::Set(d, uint32_t{kPlaneContexts - 1})));
  one = hn::Sub(hn::Set(d, kRansTotal), zero);
  positive =
      hn::IfThenElse(hn::Eq(coarse, hn::Zero(d)), tables.Positive(hn::ShiftRight<1>(one)), one);
}

// Makes symbols of lanes without a token cost nothing.
HWY_INLINE void Mask(const Step& step, Symbols& symbols) {
  if (HWY_LIKELY(step.whole())) return;
  for (size_t v = 0; v < kVectors; ++v) {
    const auto active = step.Active(v);
    symbols.start[v] = hn::IfThenElseZero(active, symbols.start[v]);
    symbols.frequency[v] = hn::IfThenElse(active, symbols.frequency[v], hn::Set(D(), kRansTotal));
  }
}

// Arrays of a step's values, for the part that is coded lane after lane.
struct LaneArrays {
  HWY_ALIGN uint32_t magnitude[kRansLanes], negative[kRansLanes], symbol[kRansLanes];
  const uint32_t raw_bits, escape;

  template <bool kTilted>
  LaneArrays(const Values& values, const V* symbols, const Tables<kTilted>& tables)
      : raw_bits(tables.raw_bits()), escape(tables.escape()) {
    const D d;
    for (size_t v = 0, at = 0; v < kVectors; ++v, at += kLanes) {
      hn::Store(values.magnitude[v], d, magnitude + at);
      hn::Store(values.negative[v], d, negative + at);
      hn::Store(symbols[v], d, symbol + at);
    }
  }
  bool HasRest(size_t lane) const { return raw_bits > 0 || symbol[lane] == escape; }
};

}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
