#include "kernels/quantize/dead_zone.h"

#include <algorithm>
#include <cmath>

#include "kernels/quantize/loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize/dead_zone.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

void Quantize(const float* values, size_t count, float inverse_step, float dead_zone, int32_t limit,
              int32_t* q) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto inverse = hn::Set(d, inverse_step), add = hn::Set(d, 1 - dead_zone);
  const auto most = hn::Set(d, static_cast<float>(limit));
  size_t i = 0;
  for (const size_t lanes = hn::Lanes(d); i + lanes <= count; i += lanes) {
    const auto value = hn::LoadU(d, values + i);
    const auto magnitude = hn::Add(hn::Mul(hn::Abs(value), inverse), add);
    const auto whole = hn::ConvertTo(di, hn::Min(magnitude, most));
    const auto sign = hn::BroadcastSignBit(hn::BitCast(di, value));
    hn::StoreU(hn::Sub(hn::Xor(whole, sign), sign), di, q + i);
  }
  DeadZoneLoops::Reference().quantize(values + i, count - i, inverse_step, dead_zone, limit, q + i);
}

const DeadZoneLoops* Loops() {
  static constexpr DeadZoneLoops kLoops{Quantize};
  return &kLoops;
}

}  // namespace
}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(Loops);

namespace {

// 2^(i / 16).
constexpr double kSixteenths[16] = {
    1.0,
    1.0442737824274138403,
    1.0905077326652576592,
    1.1387886347566916537,
    1.1892071150027210667,
    1.2418578120734840486,
    1.2968395546510096659,
    1.3542555469368927283,
    1.4142135623730950488,
    1.4768261459394993114,
    1.5422108254079408236,
    1.6104903319492543082,
    1.6817928305074290861,
    1.7562521603732994831,
    1.8340080864093424635,
    1.9152065613971472939,
};

void Quantize(const float* values, size_t count, float inverse_step, float dead_zone, int32_t limit,
              int32_t* q) {
  const auto most = static_cast<float>(limit);
  for (size_t i = 0; i < count; ++i) {
    const float magnitude = std::abs(values[i]) * inverse_step + (1 - dead_zone);
    const auto whole = static_cast<int32_t>(std::min(magnitude, most));
    q[i] = values[i] < 0 ? -whole : whole;
  }
}

}  // namespace

const DeadZoneLoops& DeadZoneLoops::Reference() {
  static constexpr DeadZoneLoops kLoops{Quantize};
  return kLoops;
}
const DeadZoneLoops& DeadZoneLoops::Best() { return *HWY_DYNAMIC_DISPATCH(Loops)(); }

void DeadZoneQuantize(const float* values, size_t count, float inverse_step, float dead_zone,
                      int32_t limit, int32_t* q) {
  DeadZoneLoops::Best().quantize(values, count, inverse_step, dead_zone, limit, q);
}

int RoundLog2(double x, int per_octave) {
  int octave;
  const double within = 2 * std::frexp(x, &octave);  // x = within 2^(octave - 1)
  int n = 0;
  while (n < per_octave && within >= kSixteenths[(2 * n + 1) * 8 / per_octave]) ++n;
  return (octave - 1) * per_octave + n;
}

double Exp2Fraction(int n, int per_octave) {
  const int octave = n >= 0 ? n / per_octave : -((-n + per_octave - 1) / per_octave);
  return std::ldexp(kSixteenths[(n - octave * per_octave) * 16 / per_octave], octave);
}

}  // namespace kvstow
#endif  // HWY_ONCE
