// The types and steps that the vector loops of the plane coder share: lanes, values of a step, and
// how a stream (plane_loops.h) is cut into steps. Files that are compiled for each SIMD target
// include it.
#if defined(KVSTOW_KERNELS_ENTROPY_PLANE_STEPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSTOW_KERNELS_ENTROPY_PLANE_STEPS_INL_H_
#undef KVSTOW_KERNELS_ENTROPY_PLANE_STEPS_INL_H_
#else
#define KVSTOW_KERNELS_ENTROPY_PLANE_STEPS_INL_H_
#endif

#include <algorithm>
#include <vector>

#include "hwy/highway.h"
#include "kernels/entropy/plane_loops.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<uint32_t, kRansLanes>;
using DI = hn::RebindToSigned<D>;
using DF = hn::RebindToFloat<D>;
using D16 = hn::Rebind<uint16_t, D>;
using V = hn::Vec<D>;
using VI = hn::Vec<DI>;
using M = hn::Mask<D>;
constexpr size_t kLanes = hn::MaxLanes(D());
constexpr size_t kVectors = kRansLanes / kLanes;
static_assert(kRansLanes % kLanes == 0);

// One symbol for each lane.
struct Symbols {
  V start[kVectors], frequency[kVectors];
};

// The values that one step codes; signs are 0 and -1.
struct Values {
  V magnitude[kVectors], negative[kVectors];
};

// The common part of a step's lanes.
struct Step {
  size_t first;  // token of lane 0
  size_t lanes;  // that have a token
  int shift;     // of the rows

  bool whole() const { return lanes == kRansLanes; }
  HWY_INLINE M Active(size_t v) const {
    return hn::FirstN(D(), lanes - std::min(lanes, v * kLanes));
  }
};

// The steps of a coefficient.
inline std::vector<Step> StepsOf(const PlaneStream& stream) {
  std::vector<Step> steps;
  for (size_t first = 0; first < stream.tokens; first += kRansLanes)
    steps.push_back({first, std::min(kRansLanes, stream.tokens - first), stream.ShiftAt(first)});
  return steps;
}

// The row of a coefficient for the tables of a level: refinements use the row at the coarser step.
inline int RowAt(const PlaneStream& stream, size_t coefficient, size_t level) {
  return stream.rows[coefficient] + 4 * static_cast<int>(level == 0 ? 0 : level - 1);
}

}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
