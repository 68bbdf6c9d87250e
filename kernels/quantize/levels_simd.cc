// The loops of the embedded code, once for each SIMD target, chosen at run time: the bytes of the
// scalar reference.
#include "kernels/quantize/loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize/levels_simd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

constexpr size_t kTable = 8;  // cells from 0 outwards at 4 bits; at more, a formula gives them

void Encode(const float* values, size_t count, size_t dim, const float* tops, uint32_t bits,
            uint8_t* codes) {
  const D d;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint8_t, D> du8;
  const size_t lanes = hn::Lanes(d);
  const auto half = static_cast<float>(1u << (bits - 1));
  const auto last = hn::Set(di, static_cast<int32_t>((1u << bits) - 1));
  for (size_t v = 0; v < count; ++v, values += dim, codes += dim) {
    const float scale = tops[v] > 0 ? half / tops[v] : 0.0f;
    size_t i = 0;
    for (; i + lanes <= dim; i += lanes) {
      const auto scaled = hn::Mul(hn::LoadU(d, values + i), hn::Set(d, scale));
      const auto cell = hn::ConvertTo(di, hn::Add(scaled, hn::Set(d, half)));
      const auto code = hn::Min(hn::Max(cell, hn::Zero(di)), last);
      hn::StoreU(hn::DemoteTo(du8, code), du8, codes + i);
    }
    if (i < dim) LevelLoops::Reference().encode(values + i, 1, dim - i, tops + v, bits, codes + i);
  }
}

// Centroids of cells by their number from 0 outwards.
struct Outwards {
  hn::Vec<D> table;  // up to 4 bits
  float half, outermost;
};

HWY_INLINE V CentroidsOf(D d, const Outwards& outwards, bool tabulated,
                         hn::Vec<hn::RebindToSigned<D>> cell) {
  if (tabulated) return hn::TableLookupLanes(outwards.table, hn::IndicesFromVec(d, cell));
  const auto number = hn::ConvertTo(d, cell);
  const auto middle = hn::Mul(hn::Add(number, hn::Set(d, 0.5f)), hn::Set(d, 1.0f / outwards.half));
  const auto is_last = hn::Eq(number, hn::Set(d, outwards.half - 1));
  return hn::IfThenElse(is_last, hn::Set(d, outwards.outermost), middle);
}

void Decode(const uint8_t* codes, size_t count, size_t dim, const float* tops, uint32_t bits,
            const float* centroids, float* values) {
  const D d;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint8_t, D> du8;
  const size_t lanes = hn::Lanes(d), half = size_t{1} << (bits - 1);
  const bool tabulated = half <= kTable;
  if (tabulated && lanes < kTable) {
    return LevelLoops::Reference().decode(codes, count, dim, tops, bits, centroids, values);
  }
  HWY_ALIGN float table[hn::MaxLanes(D())] = {};
  for (size_t i = 0; tabulated && i < half; ++i) table[i] = centroids[half + i];
  const Outwards outwards{hn::Load(d, table), static_cast<float>(half), centroids[2 * half - 1]};
  const auto middle = hn::Set(di, static_cast<int32_t>(half));
  for (size_t v = 0; v < count; ++v, values += dim, codes += dim) {
    size_t i = 0;
    for (; i + lanes <= dim; i += lanes) {
      const auto code = hn::PromoteTo(di, hn::LoadU(du8, codes + i));
      const auto offset = hn::Sub(code, middle);
      // Cells below 0 count from -1 down: all bits of the sign turn -1 into 0, -2 into 1.
      const auto below = hn::ShiftRight<31>(offset);
      const auto c = CentroidsOf(d, outwards, tabulated, hn::Xor(offset, below));
      const auto sign = hn::And(hn::BitCast(d, below), hn::Set(d, -0.0f));
      hn::StoreU(hn::Mul(hn::Xor(c, sign), hn::Set(d, tops[v])), d, values + i);
    }
    if (i < dim) {
      LevelLoops::Reference().decode(codes + i, 1, dim - i, tops + v, bits, centroids, values + i);
    }
  }
}

const LevelLoops* Loops() {
  static constexpr LevelLoops kLoops{Encode, Decode};
  return &kLoops;
}

}  // namespace
}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(Loops);

const LevelLoops& LevelLoops::Best() { return *HWY_DYNAMIC_DISPATCH(Loops)(); }

}  // namespace kvstow
#endif  // HWY_ONCE
