// The plane coder's decoding loops, once for each SIMD target, chosen at run time: the values of
// the reference. Levels of a coefficient are decoded together, so that the chains of dependent
// instructions of their states run side by side.
#include <vector>

#include "kernels/entropy/plane_loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/entropy/plane_decode_simd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/entropy/plane_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace {

// Lanes of `v` in turn to the lanes of `mask`; others are unspecified.
HWY_INLINE V Expand(V v, M mask) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  return V{_mm512_maskz_expand_epi32(mask.raw, v.raw)};
#else
  struct Places {
    constexpr Places() {
      for (size_t wanting = 0; wanting < 1 << kLanes; ++wanting) {
        uint8_t before = 0;
        for (size_t lane = 0; lane < kLanes; ++lane) {
          of[wanting][lane] = before;
          before = static_cast<uint8_t>(before + (wanting >> lane & 1));
        }
      }
    }
    uint8_t of[1 << kLanes][kLanes] = {};
  };
  static constexpr Places kPlaces;
  const D d;
  uint8_t wanting[8] = {};
  hn::StoreMaskBits(d, mask, wanting);
  const hn::Rebind<uint8_t, D> d8;
  const auto places = hn::PromoteTo(d, hn::LoadU(d8, kPlaces.of[wanting[0]]));
  return hn::TableLookupLanes(v, hn::IndicesFromVec(d, places));
#endif
}

// A RansDecoder in registers, until it is stored.
class Chain {
 public:
  HWY_INLINE explicit Chain(RansDecoder& rans) : rans_(rans) { Load(); }
  HWY_INLINE void Store() {
    for (size_t v = 0; v < kVectors; ++v) hn::Store(state_[v], D(), &rans_.states[v * kLanes]);
    rans_.next = next_;
  }

  HWY_INLINE V Slots(size_t v) const { return hn::And(state_[v], hn::Set(D(), kRansTotal - 1)); }

  HWY_INLINE void Take(const Symbols& symbols) {
    const D d;
    const auto low = hn::Set(d, kRansLow);
    for (size_t v = 0; v < kVectors; ++v) {
      const auto within = hn::Sub(Slots(v), symbols.start[v]);
      state_[v] =
          hn::Add(hn::Mul(symbols.frequency[v], hn::ShiftRight<kRansBits>(state_[v])), within);
    }
    if (HWY_UNLIKELY(next_ > last_)) return RefillAtTheEnd();
    for (size_t v = 0; v < kVectors; ++v) {
      const auto wants = Above(low, state_[v]);
      const auto words =
          hn::PromoteTo(d, hn::LoadU(D16(), reinterpret_cast<const uint16_t*>(next_)));
      const auto refilled = hn::Or(hn::ShiftLeft<16>(state_[v]), Expand(words, wants));
      state_[v] = hn::IfThenElse(wants, refilled, state_[v]);
      next_ += 2 * hn::CountTrue(d, wants);
    }
  }

  // Gets the parts that follow the symbols of a step. False for what no encoder writes.
  HWY_NOINLINE bool GetRests(const Step& step, uint32_t limit, LaneArrays& lanes) {
    Store();
    for (size_t lane = 0; lane < step.lanes; ++lane) {
      if (!lanes.HasRest(lane)) continue;
      bool negative = lanes.negative[lane] != 0;
      if (!GetPlaneRest(rans_, lane, lanes.raw_bits, lanes.escape, limit, lanes.magnitude[lane],
                        negative))
        return false;
      lanes.negative[lane] = negative ? ~0u : 0;
    }
    Load();
    return true;
  }

 private:
  static constexpr ptrdiff_t kReads = 2 * kRansLanes;  // bytes, whatever it takes

  HWY_INLINE void Load() {
    for (size_t v = 0; v < kVectors; ++v) state_[v] = hn::Load(D(), &rans_.states[v * kLanes]);
    next_ = rans_.next;
    // A step that takes the last word is done by RansDecoder.
    const bool many = rans_.refills && rans_.end - next_ > kReads;
    last_ = many ? rans_.end - kReads - 1 : next_ - 1;
  }
  HWY_INLINE void RefillAtTheEnd() {
    bool any = false;
    for (size_t v = 0; v < kVectors; ++v)
      any |= !hn::AllFalse(D(), Above(hn::Set(D(), kRansLow), state_[v]));
    if (!rans_.refills || !any) return;
    Store();
    rans_.Refill();
    Load();
  }

  RansDecoder& rans_;
  V state_[kVectors];
  const uint8_t* next_;
  const uint8_t* last_;  // at which vectors of words may be read
};

template <bool kTilted>
HWY_INLINE bool GetBase(const Step& step, const Tables<kTilted>& tables, uint32_t limit,
                        Chain& chain, Values& values) {
  const D d;
  Symbols out;
  bool more = tables.raw_bits() > 0;
  const auto escape = hn::Set(d, tables.escape());
  // No slot is above those of symbols behind the escape. A processor foretells few different
  // counts.
  constexpr uint32_t kAtOnce = 3;
  static_assert((kPlaneSymbols - 1) % kAtOnce == 0);
  const uint32_t most = (tables.escape() + kAtOnce - 1) / kAtOnce * kAtOnce;
  for (size_t v = 0; v < kVectors; ++v) {
    const auto slot = chain.Slots(v);
    auto below = hn::Zero(d);  // minus how many symbols start at or below the slot, but the first
    for (uint32_t k = 1; k <= most; k += kAtOnce) {
      for (uint32_t i = k; i < k + kAtOnce; ++i)
        below = hn::Add(below, hn::VecFromMask(d, Above(slot, tables.Before(i))));
    }
    auto symbol = hn::Sub(hn::Zero(d), below);
    if (HWY_UNLIKELY(!step.whole())) symbol = hn::IfThenElseZero(step.Active(v), symbol);
    const auto entry = tables.Symbol(symbol);
    const auto half = hn::ShiftRight<16>(entry);  // of the two signs' intervals, or all of symbol 0
    const auto first =
        kTilted ? hn::IfThenElse(hn::Eq(symbol, hn::Zero(d)), half, tables.Positive(half)) : half;
    out.start[v] = hn::And(entry, hn::Set(d, uint32_t{0xffff}));
    const auto second = hn::Add(out.start[v], first);
    const auto positive = Above(second, slot);
    out.start[v] = hn::IfThenElse(positive, out.start[v], second);
    out.frequency[v] = hn::IfThenElse(positive, first, hn::Sub(hn::Add(half, half), first));
    values.magnitude[v] = symbol;
    values.negative[v] = hn::VecFromMask(d, hn::Not(positive));
    more |= !hn::AllFalse(d, hn::Eq(symbol, escape));
  }
  Mask(step, out);
  chain.Take(out);
  if (HWY_LIKELY(!more)) return true;
  LaneArrays lanes(values, values.magnitude, tables);
  if (!chain.GetRests(step, limit, lanes)) return false;
  for (size_t v = 0; v < kVectors; ++v) {
    values.magnitude[v] = hn::Load(d, lanes.magnitude + v * kLanes);
    values.negative[v] = hn::Load(d, lanes.negative + v * kLanes);
  }
  return true;
}

template <bool kTilted>
HWY_INLINE void GetRefinement(const Step& step, const Tables<kTilted>& tables, Chain& chain,
                              Values& values) {
  const D d;
  Symbols out;
  for (size_t v = 0; v < kVectors; ++v) {
    const auto coarse = values.magnitude[v], slot = chain.Slots(v);
    V zero, one, positive;
    Refine(tables, coarse, zero, one, positive);
    auto is_zero = Above(zero, slot);
    if (HWY_UNLIKELY(!step.whole())) is_zero = hn::Or(is_zero, hn::Not(step.Active(v)));
    // Beyond all slots unless a coefficient becomes non-zero.
    const auto second = hn::Add(zero, positive);
    const auto negative = hn::AndNot(is_zero, hn::Not(Above(second, slot)));
    out.start[v] = hn::IfThenZeroElse(is_zero, hn::IfThenElse(negative, second, zero));
    const auto of_sign = hn::IfThenElse(negative, hn::Sub(one, positive), positive);
    out.frequency[v] = hn::IfThenElse(is_zero, zero, of_sign);
    const auto bit = hn::IfThenZeroElse(is_zero, hn::Set(d, uint32_t{1}));
    values.magnitude[v] = hn::Add(hn::Add(coarse, coarse), bit);
    values.negative[v] = hn::Or(values.negative[v], hn::VecFromMask(d, negative));
  }
  Mask(step, out);
  chain.Take(out);
}

// The levels [first + kIndex, first + kCount) of a stream, each with its state.
template <bool kTilted, size_t kIndex, size_t kCount>
class Levels {
 public:
  HWY_INLINE Levels(const PlaneStream& stream, size_t first, std::span<RansDecoder> decoders)
      : stream_(stream),
        level_(first + kIndex),
        tables_(stream.lookups->levels[stream.Distance(level_)]),
        chain_(decoders[level_]),
        others_(stream, first, decoders) {}

  HWY_INLINE void Begin(size_t coefficient) {
    tables_.Begin(RowAt(stream_, coefficient, level_), stream_.ShareAt(coefficient, level_));
    others_.Begin(coefficient);
  }
  HWY_INLINE void Store() {
    chain_.Store();
    others_.Store();
  }
  // Makes the values of the level before those of the last. False for what no encoder writes.
  HWY_INLINE bool Get(const Step& step, Values& values) {
    tables_.Move(step);
    if (kIndex > 0 || level_ > 0) {
      GetRefinement(step, tables_, chain_, values);
    } else if (!GetBase(step, tables_, stream_.BaseLimit(), chain_, values)) {
      return false;
    }
    return others_.Get(step, values);
  }

 private:
  const PlaneStream& stream_;
  const size_t level_;
  Tables<kTilted> tables_;
  Chain chain_;
  Levels<kTilted, kIndex + 1, kCount> others_;
};

template <bool kTilted, size_t kCount>
class Levels<kTilted, kCount, kCount> {
 public:
  HWY_INLINE Levels(const PlaneStream&, size_t, std::span<RansDecoder>) {}
  HWY_INLINE void Begin(size_t) {}
  HWY_INLINE void Store() {}
  HWY_INLINE bool Get(const Step&, Values&) { return true; }
};

// A stream at the levels [first, first + kCount).
template <bool kTilted, size_t kCount>
class Way {
 public:
  HWY_INLINE Way(const PlaneDecoding& of, size_t first)
      : stream_(of.stream),
        refines_(first > 0),
        q_(of.q),
        steps_(StepsOf(of.stream)),
        levels_(of.stream, first, of.decoders) {}

  HWY_INLINE void Begin(size_t coefficient) {
    row_ = q_ + coefficient * stream_.stride;
    levels_.Begin(coefficient);
  }
  HWY_INLINE void Store() { levels_.Store(); }
  HWY_INLINE size_t steps() const { return steps_.size(); }
  // False for what no encoder writes.
  HWY_INLINE bool Decode(size_t s) {
    const Step& step = steps_[s];
    int32_t* const at = row_ + step.first;
    Values values;
    for (size_t v = 0; v < kVectors && refines_; ++v) {
      const auto value = hn::LoadU(DI(), at + v * kLanes);
      values.magnitude[v] = Magnitudes(value);
      values.negative[v] = hn::BitCast(D(), hn::BroadcastSignBit(value));
    }
    if (!levels_.Get(step, values)) return false;
    for (size_t v = 0; v < kVectors; ++v) {
      const auto sign = values.negative[v];
      const auto value = hn::Sub(hn::Xor(values.magnitude[v], sign), sign);
      hn::StoreU(hn::BitCast(DI(), value), DI(), at + v * kLanes);
    }
    return true;
  }

 private:
  const PlaneStream& stream_;
  const bool refines_;
  int32_t* const q_;
  int32_t* row_ = nullptr;
  const std::vector<Step> steps_;
  Levels<kTilted, 0, kCount> levels_;
};

// Streams of as many tokens side by side: while one waits for its state, the other goes on.
template <class First, class... Others>
HWY_INLINE bool DecodeWays(const PlaneStream& stream, First& first, Others&... others) {
  for (size_t i = 0; i < stream.rows.size(); ++i) {
    first.Begin(i);
    (others.Begin(i), ...);
    for (size_t s = 0; s < first.steps(); ++s) {
      if (!(first.Decode(s) && (others.Decode(s) && ...))) return false;
    }
  }
  first.Store();
  (others.Store(), ...);
  return true;
}

// More than two levels keep the processor busy by themselves.
template <bool kTilted, size_t kCount>
bool DecodeLevels(const PlaneDecoding& one, const PlaneDecoding* other, size_t first) {
  Way<kTilted, kCount> way(one, first);
  if constexpr (kCount <= 2) {
    if (other != nullptr) {
      Way<kTilted, kCount> second(*other, first);
      return DecodeWays(one.stream, way, second);
    }
  }
  if (!DecodeWays(one.stream, way)) return false;
  return other == nullptr || DecodeLevels<kTilted, kCount>(*other, nullptr, first);
}

template <bool kTilted>
bool Decode(const PlaneDecoding& one, const PlaneDecoding* other) {
  for (size_t first = 0; first < one.decoders.size(); first += 4) {
    bool ok = false;
    switch (one.decoders.size() - first) {
      case 1:
        ok = DecodeLevels<kTilted, 1>(one, other, first);
        break;
      case 2:
        ok = DecodeLevels<kTilted, 2>(one, other, first);
        break;
      case 3:
        ok = DecodeLevels<kTilted, 3>(one, other, first);
        break;
      default:
        ok = DecodeLevels<kTilted, 4>(one, other, first);
        break;
    }
    if (!ok) return false;
  }
  return true;
}

bool DecodePlanes(const PlaneDecoding& one, const PlaneDecoding* other) {
  return one.stream.tilts.empty() ? Decode<false>(one, other) : Decode<true>(one, other);
}

using VF = hn::Vec<DF>;

// Coefficients of magnitudes at a level whose tables and rows are `tables`.
HWY_INLINE VF Centroids(const Tables<false>& tables, V magnitude, V negative, VF step) {
  const D d;
  const DF df;
  const auto entry = hn::Min(magnitude, hn::Set(d, uint32_t{kPlaneSymbols - 1}));
  const auto middle = hn::Sub(hn::ConvertTo(df, hn::BitCast(DI(), magnitude)), hn::Set(df, 0.5f));
  auto value = hn::Mul(hn::Add(middle, hn::BitCast(df, tables.Centre(entry))), step);
  value = hn::Or(value, hn::And(hn::BitCast(df, negative), hn::SignBit(df)));
  return hn::IfThenZeroElse(hn::RebindMask(df, hn::Eq(magnitude, hn::Zero(d))), value);
}

void DequantizePlanes(const PlaneStream& stream, const int32_t* q, size_t level,
                      std::span<const float> step_sizes, float* coefficients) {
  const DF df;
  const std::vector<Step> steps = StepsOf(stream);
  Tables<false> tables(stream.lookups->levels[stream.Distance(level)]);
  for (size_t i = 0; i < stream.rows.size(); ++i) {
    const auto size = hn::Set(df, step_sizes[step_sizes.size() == 1 ? 0 : i]);
    tables.Begin(stream.rows[i] + 4 * static_cast<int>(level));
    for (const Step& step : steps) {
      tables.Move(step);
      for (size_t v = 0; v < kVectors; ++v) {
        const size_t at = i * stream.stride + step.first + v * kLanes;
        const auto value = hn::LoadU(DI(), q + at);
        const auto sign = hn::BitCast(D(), hn::BroadcastSignBit(value));
        hn::StoreU(Centroids(tables, Magnitudes(value), sign, size), df, coefficients + at);
      }
    }
  }
}

const PlaneDecodeLoops* Loops() {
  static constexpr PlaneDecodeLoops kLoops{DecodePlanes, DequantizePlanes};
  return &kLoops;
}

}  // namespace
}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(Loops);

const PlaneDecodeLoops& PlaneDecodeLoops::Best() { return *HWY_DYNAMIC_DISPATCH(Loops)(); }

}  // namespace kvstow
#endif  // HWY_ONCE
