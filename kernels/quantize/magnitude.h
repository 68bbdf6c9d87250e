// The scale of a vector code: the largest magnitude of each vector, as fp16 holds it.
//
// Free functions, thread-safe.
#ifndef KVSTOW_KERNELS_QUANTIZE_MAGNITUDE_H_
#define KVSTOW_KERNELS_QUANTIZE_MAGNITUDE_H_

#include <cstddef>

namespace kvstow {

// tops[v] = fp16(max |x|) of vector v of `count` vectors of `dim` finite values. Returns
// false when one is beyond fp16.
bool VectorTops(const float* values, size_t count, size_t dim, float* tops);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_MAGNITUDE_H_
