// Arrays of values between a page's dtype and F32, in which all codecs compute.
//
// Free functions, thread-safe. `raw` need not be aligned. F16, BF16 and F32 only: FP8 pages pass
// through untouched. The fast versions give the same bits as the reference (tests compare them on
// every SIMD target).
#ifndef KVSTOW_KERNELS_PAGE_CONVERT_H_
#define KVSTOW_KERNELS_PAGE_CONVERT_H_

#include <cstddef>
#include <cstdint>

#include "kernels/page/page.h"

namespace kvstow {

// Reads `count` values. False when one of them is NaN or Inf (`out` is then unspecified).
bool LoadFloats(DType dtype, const uint8_t* raw, size_t count, float* out);
bool LoadFloatsReference(DType dtype, const uint8_t* raw, size_t count, float* out);

// Writes `count` finite values, rounded to nearest even, saturated to the type's largest finite
// value: never Inf.
void StoreFloats(DType dtype, const float* values, size_t count, uint8_t* raw);
void StoreFloatsReference(DType dtype, const float* values, size_t count, uint8_t* raw);

// Copies bytes that nobody reads soon: past the caches, where the processor has such stores. Other
// threads may read them after FinishStreams.
void StreamBytes(const uint8_t* from, size_t count, uint8_t* to);
void FinishStreams();

// fp16 side information of quantizers: scales and minima.
void StoreHalves(const float* values, size_t count, uint8_t* out);
// False when one of them is NaN or Inf.
bool LoadHalves(const uint8_t* halves, size_t count, float* out);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_PAGE_CONVERT_H_
