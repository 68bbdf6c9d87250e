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
  size_t first;    // token of lane 0
  size_t lanes;    // that have a token
  int most_shift;  // of the rows
  const int32_t* shifts;

  bool whole() const { return lanes == kRansLanes; }
  HWY_INLINE M Active(size_t v) const {
    return hn::FirstN(D(), lanes - std::min(lanes, v * kLanes));
  }
};

// The steps of a coefficient of block `block`.
inline std::vector<Step> StepsOf(const PlaneStream& stream, size_t block) {
  std::vector<Step> steps((stream.tokens + kRansLanes - 1) / kRansLanes);
  for (size_t s = 0; s < steps.size(); ++s) {
    Step& step = steps[s];
    step.first = s * kRansLanes;
    step.lanes = std::min(kRansLanes, stream.tokens - step.first);
    step.most_shift = 0;
    if (stream.shifts == nullptr) continue;
    step.shifts = stream.shifts + block * stream.stride + step.first;
    step.most_shift = *std::max_element(step.shifts, step.shifts + step.lanes);
  }
  return steps;
}

inline size_t FirstOfBlock(const PlaneStream& stream, size_t block) {
  return block == 0 ? 0 : stream.block_ends[block - 1];
}
inline size_t EndOfBlock(const PlaneStream& stream, size_t block) {
  return stream.block_ends.empty() ? stream.rows.size() : stream.block_ends[block];
}
// Blocks, or one for all coefficients.
inline size_t BlocksOf(const PlaneStream& stream) {
  return std::max<size_t>(stream.block_ends.size(), 1);
}
// The row of a coefficient for the tables of a level: refinements use the row at the coarser step.
inline int RowAt(const PlaneStream& stream, size_t coefficient, size_t level) {
  return stream.rows[coefficient] + 4 * static_cast<int>(level == 0 ? 0 : level - 1);
}

}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
