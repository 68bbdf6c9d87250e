// Sums of squares for measuring what a level gains.
//
// The order of additions is fixed (16 partial sums a block, blocks added in F64), so the result has
// the same bits on every machine. Free functions, thread-safe.
#ifndef KVSTOW_KERNELS_SQUARED_ERROR_H_
#define KVSTOW_KERNELS_SQUARED_ERROR_H_

#include <cstddef>

namespace kvstow {

double SquaredSum(const float* values, size_t count);
double SquaredError(const float* a, const float* b, size_t count);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_SQUARED_ERROR_H_
