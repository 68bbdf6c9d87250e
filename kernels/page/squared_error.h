// Sums of squares that measure what a level gains.
//
// The order of additions is fixed, so that the result has the same bits on every SIMD target. A
// block of 1,024 values (short enough for F32) has 16 partial sums in F32. Value i goes into sum i
// % 16; values left over at the block's end go into sum 0. The sums are added in order in F64.
// Pieces give the sum of the whole when each piece is added to the sum `before` it and all pieces
// but the last are whole blocks. Free functions, thread-safe.
#ifndef KVSTOW_KERNELS_PAGE_SQUARED_ERROR_H_
#define KVSTOW_KERNELS_PAGE_SQUARED_ERROR_H_

#include <cstddef>

namespace kvstow {

inline constexpr size_t kSquaredBlock = 1024;

double SquaredSum(const float* values, size_t count, double before = 0);
double SquaredError(const float* a, const float* b, size_t count, double before = 0);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_PAGE_SQUARED_ERROR_H_
