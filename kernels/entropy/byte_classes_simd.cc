// The loop that classifies columns, once for each SIMD target, chosen at run time: the classes of
// the scalar reference.
#include <algorithm>

#include "kernels/entropy/loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/entropy/byte_classes_simd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

using D = hn::CappedTag<uint32_t, kMaxByteClasses>;
constexpr size_t kLanes = hn::MaxLanes(D());

uint8_t Cheapest(std::span<const ByteCount> entries, const ByteCosts& costs, size_t most) {
  const D d;
  hn::Vec<D> sums[kMaxByteClasses / kLanes];
  for (auto& sum : sums) sum = hn::Zero(d);
  for (const ByteCount& e : entries) {
    const auto count = hn::Set(d, uint32_t{e.count});
    const uint32_t* cost = costs[e.byte].data();
    for (auto& sum : sums) {
      sum = hn::Add(sum, hn::Mul(count, hn::LoadU(d, cost)));
      cost += kLanes;
    }
  }
  auto least = hn::Set(d, ~uint32_t{0});
  for (size_t v = 0; v < std::size(sums); ++v) {
    const size_t lanes = std::clamp(most, v * kLanes, v * kLanes + kLanes) - v * kLanes;
    sums[v] = hn::IfThenElse(hn::FirstN(d, lanes), sums[v], hn::Set(d, ~uint32_t{0}));
    least = hn::Min(least, sums[v]);
  }
  least = hn::MinOfLanes(d, least);
  size_t v = 0;
  while (hn::AllFalse(d, hn::Eq(sums[v], least))) ++v;
  return static_cast<uint8_t>(v * kLanes + hn::FindFirstTrue(d, hn::Eq(sums[v], least)));
}

const ByteClassLoops* Loops() {
  static constexpr ByteClassLoops kLoops{Cheapest};
  return &kLoops;
}

}  // namespace
}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(Loops);

const ByteClassLoops& ByteClassLoops::Best() { return *HWY_DYNAMIC_DISPATCH(Loops)(); }

}  // namespace kvstow
#endif  // HWY_ONCE
