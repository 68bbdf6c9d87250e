// Sums of squares for measuring what a level gains.
//
// The order of additions is fixed, so that the result has the same bits on every SIMD target: a
// block of 1,024 values has 16 partial sums in F32, value i in sum i % 16 (what is left over at its
// end in sum 0), and these are added in order in F64. Free functions, thread-safe.
#ifndef KVSTOW_KERNELS_SQUARED_ERROR_H_
#define KVSTOW_KERNELS_SQUARED_ERROR_H_

#include <cstddef>

namespace kvstow {

double SquaredSum(const float* values, size_t count);
double SquaredError(const float* a, const float* b, size_t count);
// Value by value.
double SquaredErrorReference(const float* a, const float* b, size_t count);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_SQUARED_ERROR_H_
