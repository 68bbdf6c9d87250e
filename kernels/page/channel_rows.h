// Sums and shifts of rows. A row holds one channel's values, token after token.
//
// Free functions, thread-safe. They give the same bits on every machine and SIMD target: sums run
// over 8 lanes.
#ifndef KVSTOW_KERNELS_PAGE_CHANNEL_ROWS_H_
#define KVSTOW_KERNELS_PAGE_CHANNEL_ROWS_H_

#include <cstddef>

namespace kvstow {

struct RowSums {
  double values = 0, squares = 0;
};
RowSums SumRow(const float* row, size_t count);

// Adds `shift` to each value.
void ShiftRow(float shift, size_t count, float* row);
// Adds `other` value by value.
void AddRow(const float* other, size_t count, float* row);

// Returns the largest magnitude, or 0 when there are no values. NaN counts as larger than Inf.
float LargestMagnitude(const float* values, size_t count);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_PAGE_CHANNEL_ROWS_H_
