// Converts arrays of values between a page's dtype and F32. All codecs compute in F32.
//
// Free functions, thread-safe. `raw` need not be aligned. F16, BF16 and F32 only: FP8 pages pass
// through untouched. The bits are the same on every machine (kernels/page/loops.h).
#ifndef KVSTOW_KERNELS_PAGE_CONVERT_H_
#define KVSTOW_KERNELS_PAGE_CONVERT_H_

#include <cstddef>
#include <cstdint>

#include "kernels/page/page.h"

namespace kvstow {

// Reads `count` values. Returns false when one of them is NaN or Inf; `out` is then unspecified.
bool LoadFloats(DType dtype, const uint8_t* raw, size_t count, float* out);

// Writes `count` finite values. Rounds to nearest even and saturates to the type's largest finite
// value, so it never writes Inf.
void StoreFloats(DType dtype, const float* values, size_t count, uint8_t* raw);

// Copies bytes that nobody reads soon. Writes past the caches where the processor has such stores.
// Other threads may read the bytes after FinishStreams.
void StreamBytes(const uint8_t* from, size_t count, uint8_t* to);
void FinishStreams();

// Writes side information of quantizers, scales and minima, in fp16.
void StoreHalves(const float* values, size_t count, uint8_t* out);
// Returns false when one of the values is NaN or Inf.
bool LoadHalves(const uint8_t* halves, size_t count, float* out);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_PAGE_CONVERT_H_
