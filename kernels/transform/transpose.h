// Transposes a matrix of F32: tokens by channels to channels by tokens, and back.
//
// Free function, thread-safe. Highway chooses the SIMD target at run time.
#ifndef KVSTOW_KERNELS_TRANSFORM_TRANSPOSE_H_
#define KVSTOW_KERNELS_TRANSFORM_TRANSPOSE_H_

#include <cstddef>

namespace kvstow {

// to[j * to_stride + i] = from[i * from_stride + j] for i < rows and j < columns. The two do not
// overlap. Bytes behind the rows of `to` stay as they are.
void Transpose(const float* from, size_t rows, size_t columns, size_t from_stride, float* to,
               size_t to_stride);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_TRANSFORM_TRANSPOSE_H_
