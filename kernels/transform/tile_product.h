// Products of rows with a matrix by the tiles of AMX, where the processor has them: several times
// as fast as vectors of F32, for a coder that does not need F32's precision.
//
// Tiles multiply bf16 and add in F32. So values of both sides are rounded to bf16, to nearest even.
// A sum differs from the exact one by less than 2^-7 times the sum of |x| |m|; where many terms of
// random errors add, by some 2^-9 of its size. Values below 2^-126 count as 0. A row has the same
// result in every call, whatever other rows and columns are with it.
//
// Without AMX this is MultiplyRows (dense_product.h): results differ between processors. Free
// functions, thread-safe.
#ifndef KVSTOW_KERNELS_TRANSFORM_TILE_PRODUCT_H_
#define KVSTOW_KERNELS_TRANSFORM_TILE_PRODUCT_H_

#include <cstddef>

#include "kernels/transform/dense_product.h"

namespace kvstow {

// Returns whether the processor has AMX with bf16, and the system lets this process use it.
bool HasTiles();

// y[t, j] = sum over i of x[t, i] * m[i, columns.first + j] for `count` rows x of `width` values.
// `width` is m.rows(); with AMX it may be less, and the matrix ends there. Rows of y are `stride`
// >= columns.count apart.
void MultiplyRowsInTiles(const float* x, size_t count, size_t width, const PackedMatrix& m,
                         Columns columns, float* y, size_t stride);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_TRANSFORM_TILE_PRODUCT_H_
