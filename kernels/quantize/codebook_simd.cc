// The loops of scalar codebooks, once for each SIMD target, chosen at run time: the bytes of the
// scalar reference.
#include <algorithm>
#include <array>

#include "kernels/quantize/loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize/codebook_simd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

using D = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<D>;
using DU8 = hn::Rebind<uint8_t, D>;

constexpr size_t kTable = 16;    // entries at most
constexpr size_t kSums = 8;      // of SquaredLength
constexpr size_t kTogether = 4;  // vectors that are held against a middle at once

HWY_INLINE hn::Vec<DI> CountBelow(hn::Vec<DI> count, hn::Vec<D> u, hn::Vec<D> middle) {
  const DI di;
  return hn::Sub(count, hn::VecFromMask(di, hn::RebindMask(di, hn::Lt(middle, u))));
}

void Nearest(const std::vector<float>& entries, const float* x, size_t count, float scale,
             uint8_t* codes) {
  const D d;
  const DI di;
  const DU8 du8;
  const size_t lanes = hn::Lanes(d);
  const auto factor = hn::Set(d, scale);
  size_t i = 0;
  for (; i + kTogether * lanes <= count; i += kTogether * lanes) {
    hn::Vec<D> u[kTogether];
    hn::Vec<DI> code[kTogether];
    for (size_t k = 0; k < kTogether; ++k) {
      u[k] = hn::Mul(hn::LoadU(d, x + i + k * lanes), factor);
      code[k] = hn::Zero(di);
    }
    for (size_t e = 1; e < entries.size(); ++e) {
      const auto middle = hn::Set(d, (entries[e - 1] + entries[e]) * 0.5f);
      for (size_t k = 0; k < kTogether; ++k) code[k] = CountBelow(code[k], u[k], middle);
    }
    for (size_t k = 0; k < kTogether; ++k) {
      hn::StoreU(hn::DemoteTo(du8, code[k]), du8, codes + i + k * lanes);
    }
  }
  CodebookLoops::Reference().nearest(entries, x + i, count - i, scale, codes + i);
}

void Scaled(const std::vector<float>& entries, const uint8_t* codes, size_t count, float scale,
            float* out) {
  const D d;
  const DI di;
  const DU8 du8;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  if (entries.size() <= kTable && lanes >= kTable / 2) {
    HWY_ALIGN float table[std::max(kTable, hn::MaxLanes(D()))] = {};
    std::copy(entries.begin(), entries.end(), table);
    const auto low = hn::Load(d, table);
    const auto high = hn::Load(d, table + (lanes < kTable ? lanes : 0));
    const auto factor = hn::Set(d, scale);
    const auto last = hn::Set(di, static_cast<int32_t>(lanes - 1));
    for (; i + lanes <= count; i += lanes) {
      const auto code = hn::PromoteTo(di, hn::LoadU(du8, codes + i));
      const auto place = hn::IndicesFromVec(d, hn::And(code, last));
      const auto beyond = hn::RebindMask(d, hn::Gt(code, last));
      const auto entry = hn::IfThenElse(beyond, hn::TableLookupLanes(high, place),
                                        hn::TableLookupLanes(low, place));
      hn::StoreU(hn::Mul(entry, factor), d, out + i);
    }
  }
  CodebookLoops::Reference().scaled(entries, codes + i, count - i, scale, out + i);
}

double SquaredLength(const float* x, size_t count) {
  const hn::CappedTag<double, kSums> d;
  const hn::Rebind<float, decltype(d)> df;
  const size_t lanes = hn::Lanes(d), vectors = kSums / lanes;
  hn::Vec<decltype(d)> sums[kSums];
  for (size_t k = 0; k < vectors; ++k) sums[k] = hn::Zero(d);
  size_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (size_t k = 0; k < vectors; ++k) {
      const auto v = hn::PromoteTo(d, hn::LoadU(df, x + i + k * lanes));
      sums[k] = hn::Add(sums[k], hn::Mul(v, v));
    }
  }
  HWY_ALIGN std::array<double, kSums> out;
  for (size_t k = 0; k < vectors; ++k) hn::StoreU(sums[k], d, out.data() + k * lanes);
  for (size_t k = 0; i < count; ++i, ++k) out[k] += double{x[i]} * double{x[i]};
  double sum = 0;
  for (const double one : out) sum += one;
  return sum;
}

const CodebookLoops* Loops() {
  static constexpr CodebookLoops kLoops{Nearest, Scaled, SquaredLength};
  return &kLoops;
}

}  // namespace
}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(Loops);

const CodebookLoops& CodebookLoops::Best() { return *HWY_DYNAMIC_DISPATCH(Loops)(); }

}  // namespace kvstow
#endif  // HWY_ONCE
