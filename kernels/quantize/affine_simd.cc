// The affine quantizer's loops, once for each SIMD target, chosen at run time. They give the bytes
// of affine_reference.cc: the same operations in the same order, no fused multiply-add.
#include <algorithm>
#include <cmath>

#include "kernels/quantize/loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize/affine_simd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/quantize/affine-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace {

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

using Scale = AffineScale<V>;

HWY_INLINE void StoreCodes(D d, V values, V minimum, V inverse, V top, uint8_t* codes) {
  const hn::Rebind<uint8_t, D> du8;
  const auto scaled = hn::Mul(hn::Sub(values, minimum), inverse);
  const auto clipped = hn::Min(hn::Max(scaled, hn::Zero(d)), top);
  hn::StoreU(hn::DemoteTo(du8, hn::NearestInt(clipped)), du8, codes);
}

// Smallest and largest of `count` >= 1 values.
HWY_INLINE void Range(D d, const float* values, size_t count, float& low, float& high) {
  const size_t lanes = hn::Lanes(d);
  low = high = values[0];
  size_t i = 0;
  if (count >= lanes) {
    auto least = hn::LoadU(d, values), most = least;
    for (i = lanes; i + lanes <= count; i += lanes) {
      const auto v = hn::LoadU(d, values + i);
      least = hn::Min(least, v);
      most = hn::Max(most, v);
    }
    low = hn::GetLane(hn::MinOfLanes(d, least));
    high = hn::GetLane(hn::MaxOfLanes(d, most));
  }
  for (; i < count; ++i) {
    low = std::min(low, values[i]);
    high = std::max(high, values[i]);
  }
}

// Rows of up to this many groups get their scales in one go, a vector at a time.
constexpr size_t kBatch = 64;

bool EncodeRows(const AffineGroups& g, const float* values, float* steps, float* minima,
                uint8_t* codes) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const auto top = static_cast<float>((1u << g.bits) - 1);
  const size_t a_row = (g.width + g.group - 1) / g.group, groups = g.rows * a_row;
  const auto first = [&](size_t i) { return i / a_row * g.width + i % a_row * g.group; };
  const auto size = [&](size_t i) { return std::min(g.group, g.width - i % a_row * g.group); };
  HWY_ALIGN float low[kBatch], high[kBatch], minimum[kBatch], step[kBatch], inverse[kBatch];
  bool ok = true;
  for (size_t begin = 0; begin < groups; begin += kBatch) {
    const size_t n = std::min(kBatch, groups - begin);
    for (size_t i = 0; i < n; ++i) {
      Range(d, values + first(begin + i), size(begin + i), low[i], high[i]);
    }
    std::fill(low + n, low + kBatch, 0.0f);
    std::fill(high + n, high + kBatch, 0.0f);
    for (size_t i = 0; i < n; i += lanes) {
      const Scale scale = ScaleOf(d, hn::Load(d, low + i), hn::Load(d, high + i), top, ok);
      hn::Store(scale.minimum, d, minimum + i);
      hn::Store(scale.step, d, step + i);
      hn::Store(scale.inverse, d, inverse + i);
    }
    std::copy(minimum, minimum + n, minima + begin);
    std::copy(step, step + n, steps + begin);
    for (size_t i = 0; i < n; ++i) {
      const float* const from = values + first(begin + i);
      uint8_t* const to = codes + first(begin + i);
      const size_t count = size(begin + i);
      const auto m = hn::Set(d, minimum[i]), f = hn::Set(d, inverse[i]), t = hn::Set(d, top);
      size_t at = 0;
      for (; at + lanes <= count; at += lanes) {
        StoreCodes(d, hn::LoadU(d, from + at), m, f, t, to + at);
      }
      for (; at < count; ++at) {
        const float scaled = (from[at] - minimum[i]) * inverse[i];
        to[at] = static_cast<uint8_t>(std::nearbyint(std::min(std::max(scaled, 0.0f), top)));
      }
    }
  }
  return ok;
}

void DecodeRows(const AffineGroups& g, const float* steps, const float* minima,
                const uint8_t* codes, float* values) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t row = 0; row < g.rows; ++row) {
    for (size_t begin = 0; begin < g.width; begin += g.group, ++steps, ++minima) {
      const size_t count = std::min(g.group, g.width - begin);
      const auto s = hn::Set(d, *steps), m = hn::Set(d, *minima);
      size_t at = 0;
      for (; at + lanes <= count; at += lanes) {
        hn::StoreU(Decoded(d, codes + at, s, m), d, values + at);
      }
      for (; at < count; ++at) values[at] = static_cast<float>(codes[at]) * *steps + *minima;
      codes += count;
      values += count;
    }
  }
}

// One group of rows; at least one vector wide. The last vector may overlap the one before it: what
// it does twice gives the same bytes twice.
HWY_INLINE bool EncodeRowGroup(D d, size_t rows, size_t width, float top, const float* values,
                               float* steps, float* minima, uint8_t* codes) {
  const size_t lanes = hn::Lanes(d);
  bool ok = true;
  for (size_t begin = 0; begin < width; begin += lanes) {
    const size_t column = std::min(begin, width - lanes);
    auto low = hn::LoadU(d, values + column), high = low;
    for (size_t row = 1; row < rows; ++row) {
      const auto v = hn::LoadU(d, values + row * width + column);
      low = hn::Min(low, v);
      high = hn::Max(high, v);
    }
    const Scale scale = ScaleOf(d, low, high, top, ok);
    hn::StoreU(scale.step, d, steps + column);
    hn::StoreU(scale.minimum, d, minima + column);
    for (size_t row = 0; row < rows; ++row) {
      const size_t at = row * width + column;
      StoreCodes(d, hn::LoadU(d, values + at), scale.minimum, scale.inverse, hn::Set(d, top),
                 codes + at);
    }
  }
  return ok;
}

bool EncodeColumns(const AffineGroups& g, const float* values, float* steps, float* minima,
                   uint8_t* codes) {
  const D d;
  if (g.width < hn::Lanes(d)) {
    return AffineLoops::Reference().encode_columns(g, values, steps, minima, codes);
  }
  const auto top = static_cast<float>((1u << g.bits) - 1);
  bool ok = true;
  for (size_t row = 0; row < g.rows; row += g.group) {
    const size_t rows = std::min(g.group, g.rows - row), at = row * g.width;
    ok &= EncodeRowGroup(d, rows, g.width, top, values + at, steps, minima, codes + at);
    steps += g.width;
    minima += g.width;
  }
  return ok;
}

void DecodeColumns(const AffineGroups& g, const float* steps, const float* minima,
                   const uint8_t* codes, float* values) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  if (g.width < lanes)
    return AffineLoops::Reference().decode_columns(g, steps, minima, codes, values);
  for (size_t row = 0; row < g.rows; ++row) {
    const size_t scales = row / g.group * g.width;
    for (size_t begin = 0; begin < g.width; begin += lanes) {
      const size_t column = std::min(begin, g.width - lanes);
      const auto s = hn::LoadU(d, steps + scales + column);
      const auto m = hn::LoadU(d, minima + scales + column);
      hn::StoreU(Decoded(d, codes + column, s, m), d, values + column);
    }
    codes += g.width;
    values += g.width;
  }
}

const AffineLoops* Loops() {
  static constexpr AffineLoops kLoops{EncodeRows, DecodeRows, EncodeColumns, DecodeColumns};
  return &kLoops;
}

}  // namespace
}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(Loops);

const AffineLoops& AffineLoops::Best() { return *HWY_DYNAMIC_DISPATCH(Loops)(); }

}  // namespace kvstow
#endif  // HWY_ONCE
