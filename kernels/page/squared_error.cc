#include "kernels/page/squared_error.h"

#include <algorithm>

#include "kernels/page/loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/page/squared_error.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

constexpr size_t kSums = 16;

double SumOfSquares(const float* a, const float* b, size_t count, double total) {
  const hn::CappedTag<float, kSums> d;
  constexpr size_t kLanes = hn::MaxLanes(d), kVectors = kSums / kLanes;
  for (size_t begin = 0; begin < count; begin += kSquaredBlock) {
    const size_t end = std::min(count, begin + kSquaredBlock);
    hn::Vec<decltype(d)> sums[kVectors];
    std::fill(sums, sums + kVectors, hn::Zero(d));
    size_t i = begin;
    for (; i + kSums <= end; i += kSums) {
      for (size_t v = 0; v < kVectors; ++v) {
        auto x = hn::LoadU(d, a + i + v * kLanes);
        if (b != nullptr) x = hn::Sub(x, hn::LoadU(d, b + i + v * kLanes));
        sums[v] = hn::Add(sums[v], hn::Mul(x, x));
      }
    }
    HWY_ALIGN float partial[kSums];
    for (size_t v = 0; v < kVectors; ++v) hn::Store(sums[v], d, partial + v * kLanes);
    for (; i < end; ++i) {
      const float x = b == nullptr ? a[i] : a[i] - b[i];
      partial[0] += x * x;
    }
    for (const float sum : partial) total += sum;
  }
  return total;
}

const SquaredErrorLoops* Loops() {
  static constexpr SquaredErrorLoops kLoops{SumOfSquares};
  return &kLoops;
}

}  // namespace
}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(Loops);

namespace {

double SumOfSquares(const float* a, const float* b, size_t count, double total) {
  for (size_t begin = 0; begin < count; begin += kSquaredBlock) {
    const size_t n = std::min(kSquaredBlock, count - begin);
    float partial[16] = {};
    for (size_t i = 0; i < n; ++i) {
      const float x = a[begin + i] - (b == nullptr ? 0.0f : b[begin + i]);
      partial[i < n / 16 * 16 ? i % 16 : 0] += x * x;
    }
    for (const float sum : partial) total += sum;
  }
  return total;
}

}  // namespace

const SquaredErrorLoops& SquaredErrorLoops::Reference() {
  static constexpr SquaredErrorLoops kLoops{SumOfSquares};
  return kLoops;
}
const SquaredErrorLoops& SquaredErrorLoops::Best() { return *HWY_DYNAMIC_DISPATCH(Loops)(); }

double SquaredSum(const float* values, size_t count, double before) {
  return SquaredErrorLoops::Best().sum(values, nullptr, count, before);
}

double SquaredError(const float* a, const float* b, size_t count, double before) {
  return SquaredErrorLoops::Best().sum(a, b, count, before);
}

}  // namespace kvstow
#endif  // HWY_ONCE
