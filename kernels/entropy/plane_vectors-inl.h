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

// Returns table[indices] for a table of 4, kPlaneSymbols or 32 entries.

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

HWY_INLINE V Find32(const uint32_t* table, V indices) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  const D d;
  return V{
      _mm512_permutex2var_epi32(hn::Load(d, table).raw, indices.raw, hn::Load(d, table + 16).raw)};
#elif HWY_TARGET == HWY_AVX2
  return V{Choose<4>(Find16(table, indices).raw, Find16(table + 16, indices).raw, indices)};
#else
  return hn::GatherIndex(D(), table, hn::BitCast(DI(), indices));
#endif
}

HWY_INLINE M Above(V a, V b) {  // both below 2^31
  const DI di;
  return hn::RebindMask(D(), hn::Gt(hn::BitCast(di, a), hn::BitCast(di, b)));
}

HWY_INLINE V Magnitudes(VI values) { return hn::BitCast(D(), hn::Abs(values)); }

// The look-ups of a step's lanes at one level. With kSame all lanes use the tables of one row, else
// each its own. Begin takes the row of a coefficient, before it is shifted and clamped, and the
// share of its positive signs, which only rows of their own go with. Move goes to a step.
template <bool kSame>
class Tables;

template <>
class Tables<true> {
 public:
  HWY_INLINE explicit Tables(const PlaneLookups::Level& level) : level_(level) {}
  HWY_INLINE void Begin(int row, uint32_t /*share*/ = kEvenShare) {
    row = std::clamp(row, 0, kPlaneMaxRow);
    const auto [base, raw_bits] = SplitPlaneRow(row);
    raw_bits_ = raw_bits;
    escape_ = level_.escape[base];
    before_ = level_.before[base];
    symbols_ = level_.symbols[base];
    zero_ = level_.zero[std::min(row, kPlaneRows - 1)];
    centre_ = level_.centre[std::min(row, kPlaneRows - 1)];
  }
  HWY_INLINE void Move(const Step&) {}
  HWY_INLINE uint32_t MostEscape() const { return escape_; }
  HWY_INLINE bool AnyRaw() const { return raw_bits_ > 0; }
  HWY_INLINE V RawBits(size_t) const { return hn::Set(D(), raw_bits_); }
  HWY_INLINE V Escape(size_t) const { return hn::Set(D(), escape_); }
  HWY_INLINE V Before(size_t, size_t k) const { return hn::Set(D(), before_[k]); }
  HWY_INLINE V Symbol(size_t, V symbol) const { return Find16(symbols_, symbol); }
  HWY_INLINE V Zero(size_t, V context) const { return Find4(zero_, context); }
  HWY_INLINE V Centre(size_t, V magnitude) const { return Find16(centre_, magnitude); }
  // The positive part of twice `half`.
  HWY_INLINE V Positive(V half) const { return half; }

 private:
  const PlaneLookups::Level& level_;
  uint32_t raw_bits_ = 0, escape_ = 0;
  const uint32_t *before_ = nullptr, *symbols_ = nullptr, *zero_ = nullptr, *centre_ = nullptr;
};

template <>
class Tables<false> {
 public:
  HWY_INLINE explicit Tables(const PlaneLookups::Level& level) : level_(level) {}
  HWY_INLINE void Begin(int row, uint32_t share = kEvenShare) { row_ = row, share_ = share; }
  HWY_INLINE void Move(const Step& step) {
    const DI di;
    const auto last = hn::Set(di, kPlaneRows - 1);
    const int most = std::clamp(row_ + step.most_shift, 0, kPlaneMaxRow);
    any_raw_ = most >= kPlaneRows;
    most_escape_ = any_raw_ ? kPlaneSymbols - 1 : level_.most_escape[most];
    for (size_t v = 0; v < kVectors; ++v) {
      auto of = hn::Max(hn::Add(hn::LoadU(di, step.shifts + v * kLanes), hn::Set(di, row_)),
                        hn::Zero(di));
      of = hn::Min(of, hn::Set(di, kPlaneMaxRow));
      table_[v] = hn::BitCast(D(), hn::Min(of, last));
      const auto octaves = hn::ShiftRight<2>(hn::Sub(of, hn::Set(di, kPlaneRows - 4)));
      const auto raw_bits = hn::IfThenElseZero(hn::Gt(of, last), octaves);
      raw_bits_[v] = hn::BitCast(D(), raw_bits);
      base_[v] = hn::BitCast(D(), hn::Sub(of, hn::ShiftLeft<2>(raw_bits)));
    }
  }
  HWY_INLINE uint32_t MostEscape() const { return most_escape_; }
  HWY_INLINE bool AnyRaw() const { return any_raw_; }
  HWY_INLINE V RawBits(size_t v) const { return raw_bits_[v]; }
  HWY_INLINE V Escape(size_t v) const { return Find32(level_.escape, base_[v]); }
  HWY_INLINE V Before(size_t v, size_t k) const {
    return Find32(level_.before_by_row[k], base_[v]);
  }
  HWY_INLINE V Symbol(size_t v, V symbol) const {
    const auto at = hn::Add(hn::ShiftLeft<4>(base_[v]), symbol);
    return hn::GatherIndex(D(), level_.symbols[0], hn::BitCast(DI(), at));
  }
  HWY_INLINE V Zero(size_t v, V context) const {
    auto zero = Find32(level_.zero_by_row[0], table_[v]);
    for (uint32_t c = 1; c < kPlaneContexts; ++c) {
      const auto here = hn::Eq(context, hn::Set(D(), c));
      zero = hn::IfThenElse(here, Find32(level_.zero_by_row[c], table_[v]), zero);
    }
    return zero;
  }
  HWY_INLINE V Centre(size_t v, V magnitude) const {
    const auto at = hn::Add(hn::ShiftLeft<4>(table_[v]), magnitude);
    return hn::GatherIndex(D(), level_.centre[0], hn::BitCast(DI(), at));
  }
  HWY_INLINE V Positive(V half) const {  // PositivePart
    const D d;
    const auto others =
        hn::Mul(hn::Sub(hn::Add(half, half), hn::Set(d, uint32_t{2})), hn::Set(d, share_));
    return hn::Add(hn::ShiftRight<8>(hn::Add(others, hn::Set(d, kEvenShare))),
                   hn::Set(d, uint32_t{1}));
  }

 private:
  const PlaneLookups::Level& level_;
  int row_ = 0;
  uint32_t share_ = kEvenShare;
  bool any_raw_ = false;
  uint32_t most_escape_ = 0;
  V table_[kVectors], base_[kVectors], raw_bits_[kVectors];
};

// For bits that refine magnitudes `coarse`: the share of the slots of a 0, of a 1, and of a 1 that
// brings no negative sign.
template <bool kSame>
HWY_INLINE void Refine(const Tables<kSame>& tables, size_t v, V coarse, V& zero, V& one,
                       V& positive) {
  const D d;
  zero = tables.Zero(v, hn::Min(coarse, hn::Set(d, uint32_t{kPlaneContexts - 1})));
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
template <bool kSame>
struct LaneArrays {
  HWY_ALIGN uint32_t magnitude[kRansLanes], negative[kRansLanes], symbol[kRansLanes];
  HWY_ALIGN uint32_t raw_bits[kRansLanes], escape[kRansLanes];

  LaneArrays(const Values& values, const V* symbols, const Tables<kSame>& tables) {
    const D d;
    for (size_t v = 0, at = 0; v < kVectors; ++v, at += kLanes) {
      hn::Store(values.magnitude[v], d, magnitude + at);
      hn::Store(values.negative[v], d, negative + at);
      hn::Store(symbols[v], d, symbol + at);
      hn::Store(tables.RawBits(v), d, raw_bits + at);
      hn::Store(tables.Escape(v), d, escape + at);
    }
  }
  bool HasRest(size_t lane) const { return raw_bits[lane] > 0 || symbol[lane] == escape[lane]; }
};

}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
