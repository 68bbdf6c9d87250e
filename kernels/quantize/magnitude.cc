#include <algorithm>
#include <cmath>

#include "kernels/page/half.h"
#include "kernels/quantize/loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize/magnitude.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

bool Tops(const float* values, size_t count, size_t dim, float* tops) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  bool finite = true;
  for (size_t v = 0; v < count; ++v, values += dim) {
    auto largest = hn::Zero(d);
    size_t i = 0;
    for (; i + lanes <= dim; i += lanes) {
      largest = hn::Max(largest, hn::Abs(hn::LoadU(d, values + i)));
    }
    float top = hn::GetLane(hn::MaxOfLanes(d, largest));
    for (; i < dim; ++i) top = std::max(top, std::abs(values[i]));
    const uint16_t half = FloatToHalf(top);
    finite &= IsFiniteHalf(half);
    tops[v] = HalfToFloat(half);
  }
  return finite;
}

const MagnitudeLoops* Loops() {
  static constexpr MagnitudeLoops kLoops{Tops};
  return &kLoops;
}

}  // namespace
}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(Loops);

namespace {

bool Tops(const float* values, size_t count, size_t dim, float* tops) {
  bool finite = true;
  for (size_t v = 0; v < count; ++v) {
    float top = 0;
    for (size_t i = 0; i < dim; ++i) top = std::max(top, std::abs(values[v * dim + i]));
    const uint16_t half = FloatToHalf(top);
    finite &= IsFiniteHalf(half);
    tops[v] = HalfToFloat(half);
  }
  return finite;
}

}  // namespace

const MagnitudeLoops& MagnitudeLoops::Reference() {
  static constexpr MagnitudeLoops kLoops{Tops};
  return kLoops;
}
const MagnitudeLoops& MagnitudeLoops::Best() { return *HWY_DYNAMIC_DISPATCH(Loops)(); }

}  // namespace kvstow
#endif  // HWY_ONCE
