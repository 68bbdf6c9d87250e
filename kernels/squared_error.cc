#include "kernels/squared_error.h"

#include <algorithm>

namespace kvstow {
namespace {

constexpr size_t kLanes = 16;
constexpr size_t kBlock = 1024;  // short enough that F32 sums keep their precision

// The sum of f(i)^2.
template <typename F>
double SumOfSquares(size_t count, F f) {
  double sum = 0;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t end = std::min(count, begin + kBlock);
    float lanes[kLanes] = {};
    size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const float x = f(i + lane);
        lanes[lane] += x * x;
      }
    }
    for (; i < end; ++i) lanes[0] += f(i) * f(i);
    for (const float lane : lanes) sum += lane;
  }
  return sum;
}

}  // namespace

double SquaredSum(const float* values, size_t count) {
  return SumOfSquares(count, [=](size_t i) { return values[i]; });
}

double SquaredError(const float* a, const float* b, size_t count) {
  return SumOfSquares(count, [=](size_t i) { return a[i] - b[i]; });
}

}  // namespace kvstow
