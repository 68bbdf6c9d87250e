// The block formats, once for each SIMD target, chosen at run time: the bytes of the scalar
// reference.
#include <algorithm>

#include "kernels/quantize/block_scales.h"
#include "kernels/quantize/loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize/block_simd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/quantize/minifloat-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace {

#if HWY_TARGET != HWY_SCALAR

// At most the smallest block.
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
using DI = hn::RebindToSigned<D>;
using DU8 = hn::Rebind<uint8_t, D>;

// Blocks whose scales are made before any of their codes: one scale is a long chain of steps, and
// the processor looks only so far ahead for others to work on.
constexpr size_t kBatch = 16;

HWY_INLINE V Scaled(const float* x, V factor) { return hn::Mul(hn::LoadU(D(), x), factor); }

// The largest magnitude of kValues values.
template <size_t kValues>
HWY_INLINE float Magnitude(const float* x) {
  const D d;
  auto top = hn::Abs(hn::LoadU(d, x));
  for (size_t i = hn::Lanes(d); i < kValues; i += hn::Lanes(d)) {
    top = hn::Max(top, hn::Abs(hn::LoadU(d, x + i)));
  }
  return hn::GetLane(hn::MaxOfLanes(d, top));
}

// Codes of a block between values and bytes, and its value of largest magnitude, whose sign may
// differ where the scale has none. Load returns false when a code is NaN.
struct Q8 : Q8Format {
  static HWY_INLINE float Largest(const float* x) { return Magnitude<kValues>(x); }

  static HWY_INLINE void Store(const float* x, V inverse, uint8_t* codes) {
    const D d;
    const DI di;
    const hn::Rebind<int8_t, D> di8;
    for (size_t i = 0; i < kValues; i += hn::Lanes(d)) {
      const auto value = Scaled(x + i, inverse);
      // Half-way values go away from zero: the value before 1/2 makes a whole number of them, and
      // of nothing below.
      const auto half = hn::CopySign(hn::Set(d, 0x1.fffffep-2f), value);
      const auto code = hn::ConvertTo(di, hn::Add(value, half));
      hn::StoreU(hn::DemoteTo(di8, code), di8, reinterpret_cast<int8_t*>(codes + i));
    }
  }

  static HWY_INLINE bool Load(const uint8_t* codes, V step, float* x) {
    const D d;
    const hn::Rebind<int8_t, D> di8;
    for (size_t i = 0; i < kValues; i += hn::Lanes(d)) {
      const auto code = hn::LoadU(di8, reinterpret_cast<const int8_t*>(codes + i));
      hn::StoreU(hn::Mul(hn::ConvertTo(d, hn::PromoteTo(DI(), code)), step), d, x + i);
    }
    return true;
  }
};

struct Q4 : Q4Format {
  static HWY_INLINE float Largest(const float* x) {
    const D d;
    auto most = hn::LoadU(d, x), least = most;
    for (size_t i = hn::Lanes(d); i < kValues; i += hn::Lanes(d)) {
      const auto value = hn::LoadU(d, x + i);
      most = hn::Max(most, value);
      least = hn::Min(least, value);
    }
    const float above = hn::GetLane(hn::MaxOfLanes(d, most));
    const float below = hn::GetLane(hn::MinOfLanes(d, least));
    // Both signs have that magnitude, or all is zero: the sign of the first one counts.
    if (above == -below) return x[LargestAt(x, kValues)];
    return above > -below ? above : below;
  }

  static HWY_INLINE void Store(const float* x, V inverse, uint8_t* codes) {
    const D d;
    const DI di;
    const DU8 du8;
    const auto code = [&](const float* from) HWY_ATTR {
      const auto shifted = hn::Add(Scaled(from, inverse), hn::Set(d, 8.5f));
      return hn::Min(hn::ConvertTo(di, shifted), hn::Set(di, 15));
    };
    for (size_t i = 0; i < kValues / 2; i += hn::Lanes(d)) {
      const auto pair = hn::Or(code(x + i), hn::ShiftLeft<4>(code(x + i + kValues / 2)));
      hn::StoreU(hn::DemoteTo(du8, pair), du8, codes + i);
    }
  }

  static HWY_INLINE bool Load(const uint8_t* codes, V step, float* x) {
    const D d;
    const DI di;
    const auto store = [&](hn::Vec<DI> code, float* to) HWY_ATTR {
      const auto value = hn::ConvertTo(d, hn::Sub(code, hn::Set(di, 8)));
      hn::StoreU(hn::Mul(value, step), d, to);
    };
    for (size_t i = 0; i < kValues / 2; i += hn::Lanes(d)) {
      const auto pair = hn::PromoteTo(di, hn::LoadU(DU8(), codes + i));
      store(hn::And(pair, hn::Set(di, 15)), x + i);
      store(hn::ShiftRight<4>(pair), x + i + kValues / 2);
    }
    return true;
  }
};

// bf16 of the values of E2M1 codes, as E2M1ToFloat has them: their upper and their lower bytes.
HWY_ALIGN constexpr uint8_t kE2M1Upper[16] = {0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                              0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};
HWY_ALIGN constexpr uint8_t kE2M1Lower[16] = {0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0,
                                              0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0};

template <class Format>
struct E2M1 : Format {
  static HWY_INLINE float Largest(const float* x) { return Magnitude<Format::kValues>(x); }

  static HWY_INLINE void Store(const float* x, V factor, uint8_t* codes) {
    const D d;
    const hn::Repartition<uint64_t, D> pairs;
    const hn::Rebind<uint8_t, decltype(pairs)> bytes;
    for (size_t i = 0; i < Format::kValues; i += hn::Lanes(d)) {
      const auto pair = hn::BitCast(pairs, E2M1Codes(d, Scaled(x + i, factor)));
      const auto byte = hn::Or(pair, hn::ShiftRight<28>(pair));
      hn::StoreU(hn::TruncateTo(bytes, byte), bytes, codes + i / 2);
    }
  }

  static HWY_INLINE bool Load(const uint8_t* codes, V scale, float* x) {
    const D d;
    const hn::RebindToUnsigned<D> du;
    const hn::Repartition<uint8_t, D> all_bytes;
    const hn::Rebind<uint16_t, hn::Repartition<uint64_t, D>> pairs;
    const hn::Rebind<uint8_t, decltype(pairs)> bytes;
    const auto upper = hn::LoadDup128(all_bytes, kE2M1Upper);
    const auto lower = hn::LoadDup128(all_bytes, kE2M1Lower);
    for (size_t i = 0; i < Format::kValues; i += hn::Lanes(d)) {
      const auto byte = hn::PromoteTo(pairs, hn::LoadU(bytes, codes + i / 2));
      const auto pair = hn::And(hn::Or(byte, hn::ShiftLeft<4>(byte)), hn::Set(pairs, 0x0f0f));
      // The other three bytes of a lane find 0.
      const auto code = hn::PromoteTo(du, hn::BitCast(DU8(), pair));
      const auto high = hn::ShiftLeft<24>(hn::TableLookupBytes(upper, code));
      const auto low = hn::ShiftLeft<16>(hn::TableLookupBytes(lower, code));
      hn::StoreU(hn::Mul(hn::BitCast(d, hn::Or(high, low)), scale), d, x + i);
    }
    return true;
  }
};

struct Mx8 : Mx8Format {
  static HWY_INLINE float Largest(const float* x) { return Magnitude<kValues>(x); }

  static HWY_INLINE void Store(const float* x, V factor, uint8_t* codes) {
    const D d;
    const DU8 du8;
    for (size_t i = 0; i < kValues; i += hn::Lanes(d)) {
      hn::StoreU(hn::DemoteTo(du8, E4M3Codes(d, Scaled(x + i, factor))), du8, codes + i);
    }
  }

  static HWY_INLINE bool Load(const uint8_t* codes, V scale, float* x) {
    const D d;
    const hn::RebindToUnsigned<D> du;
    auto largest = hn::Zero(du);
    for (size_t i = 0; i < kValues; i += hn::Lanes(d)) {
      const auto code = hn::PromoteTo(du, hn::LoadU(DU8(), codes + i));
      const auto low = hn::And(code, hn::Set(du, 0x7f));
      largest = hn::Max(largest, low);
      hn::StoreU(hn::Mul(E4M3Values(d, code, low), scale), d, x + i);
    }
    return hn::AllTrue(DI(), hn::Lt(hn::BitCast(DI(), largest), hn::Set(DI(), 0x7f)));
  }
};

// Scales of up to kBatch blocks; lanes beyond them have tops too.
template <class Codes>
HWY_INLINE void PutScales(const float* tops, size_t blocks, float tensor, uint8_t* block,
                          float* factors) {
  for (size_t i = 0; i < blocks; ++i, block += Codes::kBytes) {
    factors[i] = Codes::Put(tops[i], tensor, block);
  }
}

// As Nv4Format::Put.
template <>
HWY_INLINE void PutScales<E2M1<Nv4Format>>(const float* tops, size_t blocks, float tensor,
                                           uint8_t* block, float* factors) {
  const D d;
  const auto t = hn::Set(d, tensor), zero = hn::Zero(d);
  HWY_ALIGN uint8_t scales[kBatch];
  for (size_t i = 0; i < kBatch; i += hn::Lanes(d)) {
    const auto exact = hn::Div(hn::Div(hn::LoadU(d, tops + i), hn::Set(d, kMaxE2M1)), t);
    const auto code = E4M3Codes(d, hn::IfThenElse(hn::Gt(t, zero), exact, zero));
    hn::StoreU(hn::DemoteTo(DU8(), code), DU8(), scales + i);
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::BitCast(du, code);
    const auto scale = hn::Mul(E4M3Values(d, bits, bits), t);
    const auto factor = hn::Div(hn::Set(d, 1.0f), scale);
    hn::StoreU(hn::IfThenElseZero(hn::Gt(scale, zero), factor), d, factors + i);
  }
  for (size_t i = 0; i < blocks; ++i) block[i * Nv4Format::kBytes] = scales[i];
}

template <class Codes>
void EncodeBlocks(const float* x, size_t count, float tensor, uint8_t* block) {
  HWY_ALIGN float tops[kBatch] = {}, factors[kBatch];
  while (count > 0) {
    const size_t blocks = std::min(kBatch, count);
    for (size_t i = 0; i < blocks; ++i) tops[i] = Codes::Largest(x + i * Codes::kValues);
    PutScales<Codes>(tops, blocks, tensor, block, factors);
    for (size_t i = 0; i < blocks; ++i, x += Codes::kValues, block += Codes::kBytes) {
      Codes::Store(x, hn::Set(D(), factors[i]), block + Codes::kScaleBytes);
    }
    count -= blocks;
  }
}

template <class Codes>
bool DecodeBlocks(const uint8_t* block, size_t count, float tensor, float* x) {
  bool ok = true;
  for (; count > 0; --count, x += Codes::kValues, block += Codes::kBytes) {
    float scale = 0;
    ok &= Codes::Get(block, tensor, &scale);
    ok &= Codes::Load(block + Codes::kScaleBytes, hn::Set(D(), scale), x);
  }
  return ok;
}

void EncodeFormat(BlockFormat format, const float* values, size_t count, float tensor,
                  uint8_t* blocks) {
  constexpr decltype(&EncodeBlocks<Q8>) kEncode[] = {
      EncodeBlocks<Q8>, EncodeBlocks<Q4>, EncodeBlocks<E2M1<Nv4Format>>,
      EncodeBlocks<E2M1<Mx4Format>>, EncodeBlocks<Mx8>};
  kEncode[static_cast<size_t>(format)](values, count, tensor, blocks);
}

bool DecodeFormat(BlockFormat format, const uint8_t* blocks, size_t count, float tensor,
                  float* values) {
  constexpr decltype(&DecodeBlocks<Q8>) kDecode[] = {
      DecodeBlocks<Q8>, DecodeBlocks<Q4>, DecodeBlocks<E2M1<Nv4Format>>,
      DecodeBlocks<E2M1<Mx4Format>>, DecodeBlocks<Mx8>};
  return kDecode[static_cast<size_t>(format)](blocks, count, tensor, values);
}

const BlockLoops* Loops() {
  static constexpr BlockLoops kLoops{EncodeFormat, DecodeFormat};
  return &kLoops;
}

#else  // no vectors to shuffle

const BlockLoops* Loops() { return &BlockLoops::Reference(); }

#endif

}  // namespace
}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(Loops);

const BlockLoops& BlockLoops::Best() { return *HWY_DYNAMIC_DISPATCH(Loops)(); }

}  // namespace kvstow
#endif  // HWY_ONCE
