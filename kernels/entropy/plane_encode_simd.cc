// The plane coder's encoding loop, once for each SIMD target, chosen at run time: the bytes of the
// reference. Levels of a coefficient are coded together, so that the chains of dependent
// instructions of their states run side by side.
#include <vector>

#include "kernels/entropy/plane_loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/entropy/plane_encode_simd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/entropy/plane_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace {

// Rounds values in [0, 2^31) towards 0. Highway's ConvertTo takes longer: it allows any value.
HWY_INLINE VI Truncate(hn::Vec<DF> values) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  return VI{_mm512_cvttps_epi32(values.raw)};
#elif HWY_TARGET == HWY_AVX2
  return VI{_mm256_cvttps_epi32(values.raw)};
#else
  return hn::ConvertTo(DI(), values);
#endif
}

// The state with a symbol, below 2^31. Only what depends on the state delays the next symbol: the
// reciprocal of the frequency does not.
HWY_INLINE V Push(V state, V start, V frequency) {
  const DI di;
  const DF df;
  const auto x = hn::BitCast(di, state), f = hn::BitCast(di, frequency);
  const auto reciprocal = hn::Div(hn::Set(df, 1.0f), hn::ConvertTo(df, f));
  // The quotient is below 2^17, and F32 errs by less than 3 * 2^-24 * 2^17, which is below 1/32.
  // Less 1/32, it truncates to the quotient or to one less.
  const auto below = hn::MulAdd(hn::ConvertTo(df, x), reciprocal, hn::Set(df, -1.0f / 32));
  const auto q = Truncate(below);
  const auto rest = hn::Sub(x, hn::Mul(q, f));
  const auto one_less = hn::VecFromMask(di, hn::Gt(rest, hn::Sub(f, hn::Set(di, 1))));
  // The state is q total + (x - q f) + start.
  const auto total = hn::Set(di, static_cast<int32_t>(kRansTotal));
  const auto known = hn::Add(hn::Add(hn::ShiftLeft<kRansBits>(q), rest), hn::BitCast(di, start));
  return hn::BitCast(D(), hn::Add(known, hn::And(one_less, hn::Sub(total, f))));
}

// Stores the low words of states above `most`, the last lane's first. Writes a vector of words,
// however many there are.
HWY_INLINE void StoreAbove(V state, V most, uint16_t* words) {
  const D d;
#if HWY_TARGET == HWY_AVX2  // whose Compress copies its table to the stack each time
  struct Places {
    constexpr Places() {
      for (size_t chosen = 0; chosen < 1 << kLanes; ++chosen) {
        size_t n = 0;
        for (size_t lane = kLanes; lane-- > 0;) {
          if ((chosen >> lane & 1) == 0) continue;
          of[chosen][2 * n] = static_cast<uint8_t>(2 * lane);
          of[chosen][2 * n++ + 1] = static_cast<uint8_t>(2 * lane + 1);
        }
      }
    }
    alignas(16) uint8_t of[1 << kLanes][2 * kLanes] = {};
  };
  static constexpr Places kPlaces;
  uint8_t chosen[8] = {};
  hn::StoreMaskBits(d, Above(state, most), chosen);
  const hn::Repartition<uint8_t, D16> d8;
  const auto bytes = hn::BitCast(d8, hn::TruncateTo(D16(), state));
  const auto chosen_bytes = hn::TableLookupBytes(bytes, hn::LoadU(d8, kPlaces.of[chosen[0]]));
  hn::StoreU(hn::BitCast(D16(), chosen_bytes), D16(), words);
#else
  const auto last_first = hn::Reverse(d, state);
  const auto above = Above(last_first, hn::Reverse(d, most));
  hn::StoreU(hn::TruncateTo(D16(), hn::Compress(last_first, above)), D16(), words);
#endif
}

// A RansEncoder in registers, until it is stored.
class Chain {
 public:
  HWY_INLINE explicit Chain(RansEncoder& rans) : rans_(rans) { Load(); }
  HWY_INLINE void Store() {
    for (size_t v = 0; v < kVectors; ++v) hn::Store(state_[v], D(), &rans_.states[v * kLanes]);
    rans_.written = written_;
  }

  HWY_INLINE void Reserve(size_t words) {
    if (HWY_LIKELY(rans_.words.size() >= written_ + words)) return;
    Store();
    rans_.Reserve(words);
    Load();
  }

  HWY_INLINE void Put(const Symbols& symbols) {
    const D d;
    V most[kVectors];
    for (size_t v = 0; v < kVectors; ++v)
      most[v] =
          hn::Sub(hn::ShiftLeft<31 - kRansBits>(symbols.frequency[v]), hn::Set(d, uint32_t{1}));
    if (HWY_UNLIKELY(written_ == 0)) Rise(most);
    for (size_t v = kVectors; v-- > 0;) {
      const auto above = Above(state_[v], most[v]);
      StoreAbove(state_[v], most[v], words_ + written_);
      written_ += hn::CountTrue(d, above);
      const auto kept = hn::IfThenElse(above, hn::ShiftRight<16>(state_[v]), state_[v]);
      state_[v] = Push(kept, symbols.start[v], symbols.frequency[v]);
    }
  }

  // Puts the parts that follow the symbols of a step. An encoder puts them first.
  HWY_NOINLINE void PutRests(const Step& step, const LaneArrays& lanes) {
    Store();
    for (size_t lane = step.lanes; lane-- > 0;) {
      if (lanes.HasRest(lane))
        PutPlaneRest(rans_, lane, lanes.magnitude[lane], lanes.negative[lane] != 0, lanes.raw_bits,
                     lanes.escape);
    }
    Load();
  }

 private:
  HWY_INLINE void Load() {
    for (size_t v = 0; v < kVectors; ++v) state_[v] = hn::Load(D(), &rans_.states[v * kLanes]);
    words_ = rans_.words.data();
    written_ = rans_.written;
  }
  // See rans.h.
  HWY_INLINE void Rise(const V* most) {
    const auto low = hn::Set(D(), kRansLow);
    bool writes = false;
    for (size_t v = 0; v < kVectors; ++v)
      writes |= !hn::AllFalse(D(), Above(hn::Add(state_[v], low), most[v]));
    for (size_t v = 0; v < kVectors && writes; ++v) state_[v] = hn::Add(state_[v], low);
  }

  RansEncoder& rans_;
  V state_[kVectors];
  uint16_t* words_;
  size_t written_;
};

template <bool kTilted>
HWY_INLINE void PutBase(const Step& step, const Tables<kTilted>& tables, const Values& values,
                        Chain& chain) {
  const D d;
  Symbols out;
  V symbols[kVectors];
  bool more = tables.raw_bits() > 0;
  const auto escape = hn::Set(d, tables.escape());
  for (size_t v = 0; v < kVectors; ++v) {
    const auto high = hn::ShiftRightSame(values.magnitude[v], static_cast<int>(tables.raw_bits()));
    symbols[v] = hn::Min(high, escape);
    more |= !hn::AllFalse(d, hn::Eq(symbols[v], escape));
    const auto entry = tables.Symbol(symbols[v]);
    const auto half = hn::ShiftRight<16>(entry);  // of the two signs' intervals, or all of symbol 0
    const auto zero = hn::Eq(symbols[v], hn::Zero(d));
    const auto first = kTilted ? hn::IfThenElse(zero, half, tables.Positive(half)) : half;
    const auto negative = hn::AndNot(hn::VecFromMask(d, zero), values.negative[v]);
    const auto second = hn::Sub(hn::Add(half, half), first);
    out.frequency[v] = hn::IfVecThenElse(negative, second, first);
    out.start[v] = hn::Add(hn::And(entry, hn::Set(d, uint32_t{0xffff})), hn::And(negative, first));
  }
  if (HWY_UNLIKELY(more)) chain.PutRests(step, LaneArrays(values, symbols, tables));
  Mask(step, out);
  chain.Put(out);
}

template <bool kTilted>
HWY_INLINE void PutRefinement(const Step& step, const Tables<kTilted>& tables, const Values& values,
                              Chain& chain) {
  const D d;
  const auto unit = hn::Set(d, uint32_t{1});
  Symbols out;
  for (size_t v = 0; v < kVectors; ++v) {
    const auto magnitude = values.magnitude[v];
    V zero, one, positive;
    Refine(tables, hn::ShiftRight<1>(magnitude), zero, one, positive);
    const auto bit = hn::Ne(hn::And(magnitude, unit), hn::Zero(d));
    const auto negative = hn::IfThenElseZero(hn::Eq(magnitude, unit), values.negative[v]);
    const auto of_sign = hn::IfVecThenElse(negative, hn::Sub(one, positive), positive);
    out.start[v] = hn::IfThenElseZero(bit, hn::Add(zero, hn::And(negative, positive)));
    out.frequency[v] = hn::IfThenElse(bit, of_sign, zero);
  }
  Mask(step, out);
  chain.Put(out);
}

// The levels [first + kIndex, first + kCount) of a stream, each with its state.
template <bool kTilted, size_t kIndex, size_t kCount>
class Levels {
 public:
  HWY_INLINE Levels(const PlaneStream& stream, size_t first, std::span<RansEncoder> encoders)
      : stream_(stream),
        level_(first + kIndex),
        tables_(stream.lookups->levels[stream.Distance(level_)]),
        chain_(encoders[level_]),
        others_(stream, first, encoders) {}

  HWY_INLINE void Reserve(size_t words) {
    chain_.Reserve(words);
    others_.Reserve(words);
  }
  HWY_INLINE void Begin(size_t coefficient) {
    tables_.Begin(RowAt(stream_, coefficient, level_), stream_.ShareAt(coefficient, level_));
    others_.Begin(coefficient);
  }
  HWY_INLINE void Store() {
    chain_.Store();
    others_.Store();
  }
  HWY_INLINE void Put(const Step& step, const Values& finest) {
    tables_.Move(step);
    const auto dropped = static_cast<int>(stream_.levels - 1 - level_);
    Values values;
    for (size_t v = 0; v < kVectors; ++v) {
      values.magnitude[v] = hn::ShiftRightSame(finest.magnitude[v], dropped);
      values.negative[v] = finest.negative[v];
    }
    if (kIndex == 0 && level_ == 0) {
      PutBase(step, tables_, values, chain_);
    } else {
      PutRefinement(step, tables_, values, chain_);
    }
    others_.Put(step, finest);
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
  HWY_INLINE Levels(const PlaneStream&, size_t, std::span<RansEncoder>) {}
  HWY_INLINE void Reserve(size_t) {}
  HWY_INLINE void Begin(size_t) {}
  HWY_INLINE void Store() {}
  HWY_INLINE void Put(const Step&, const Values&) {}
};

HWY_INLINE Values LoadValues(const Step& step, const int32_t* q) {
  Values values;
  for (size_t v = 0; v < kVectors; ++v) {
    auto value = hn::LoadU(DI(), q + v * kLanes);
    if (HWY_UNLIKELY(!step.whole()))
      value = hn::IfThenElseZero(hn::RebindMask(DI(), step.Active(v)), value);
    values.magnitude[v] = Magnitudes(value);
    values.negative[v] = hn::BitCast(D(), hn::BroadcastSignBit(value));
  }
  return values;
}

// A stream at the levels [first, first + kCount).
template <bool kTilted, size_t kCount>
class Way {
 public:
  HWY_INLINE Way(const PlaneEncoding& of, size_t first)
      : stream_(of.stream),
        q_(of.q),
        steps_(StepsOf(of.stream)),
        levels_(of.stream, first, of.encoders) {}

  HWY_INLINE void Begin(size_t coefficient) {
    constexpr size_t kWordsAStep = 8 * kRansLanes;  // the most that one writes
    row_ = q_ + coefficient * stream_.stride;
    levels_.Reserve((steps_.size() + 1) * kWordsAStep);
    levels_.Begin(coefficient);
  }
  HWY_INLINE void Store() { levels_.Store(); }
  HWY_INLINE size_t steps() const { return steps_.size(); }
  HWY_INLINE void Encode(size_t s) {
    levels_.Put(steps_[s], LoadValues(steps_[s], row_ + steps_[s].first));
  }

 private:
  const PlaneStream& stream_;
  const int32_t* const q_;
  const int32_t* row_ = nullptr;
  const std::vector<Step> steps_;
  Levels<kTilted, 0, kCount> levels_;
};

// Streams of as many tokens side by side: while one waits for its state, the other goes on.
template <class First, class... Others>
HWY_INLINE void EncodeWays(const PlaneStream& stream, First& first, Others&... others) {
  for (size_t i = stream.rows.size(); i-- > 0;) {
    first.Begin(i);
    (others.Begin(i), ...);
    for (size_t s = first.steps(); s-- > 0;) {
      first.Encode(s);
      (others.Encode(s), ...);
    }
  }
  first.Store();
  (others.Store(), ...);
}

// More than two levels keep the processor busy by themselves.
template <bool kTilted, size_t kCount>
void EncodeLevels(const PlaneEncoding& one, const PlaneEncoding* other, size_t first) {
  Way<kTilted, kCount> way(one, first);
  if constexpr (kCount <= 2) {
    if (other != nullptr) {
      Way<kTilted, kCount> second(*other, first);
      return EncodeWays(one.stream, way, second);
    }
  }
  EncodeWays(one.stream, way);
  if (other != nullptr) EncodeLevels<kTilted, kCount>(*other, nullptr, first);
}

template <bool kTilted>
void Encode(const PlaneEncoding& one, const PlaneEncoding* other) {
  for (size_t first = 0; first < one.encoders.size(); first += 4) {
    switch (one.encoders.size() - first) {
      case 1:
        EncodeLevels<kTilted, 1>(one, other, first);
        break;
      case 2:
        EncodeLevels<kTilted, 2>(one, other, first);
        break;
      case 3:
        EncodeLevels<kTilted, 3>(one, other, first);
        break;
      default:
        EncodeLevels<kTilted, 4>(one, other, first);
        break;
    }
  }
}

void EncodePlanes(const PlaneEncoding& one, const PlaneEncoding* other) {
  if (one.stream.tilts.empty()) {
    Encode<false>(one, other);
  } else {
    Encode<true>(one, other);
  }
}

const PlaneEncodeLoops* Loops() {
  static constexpr PlaneEncodeLoops kLoops{EncodePlanes};
  return &kLoops;
}

}  // namespace
}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(Loops);

const PlaneEncodeLoops& PlaneEncodeLoops::Best() { return *HWY_DYNAMIC_DISPATCH(Loops)(); }

}  // namespace kvstow
#endif  // HWY_ONCE
