// Values of a page by bytes: plane 0 has the highest byte of each value, the last plane the lowest.
//
// BF16 and F32 are first rotated left by one bit: plane 0 is then the exponent, and the sign is the
// lowest bit. F16 and FP8 stay as they are: plane 0 of F16 is the sign, the exponent and two bits
// of the mantissa. Bits only move, so any pattern comes back. Free functions, thread-safe. `raw`
// need not be aligned.
#ifndef KVSTOW_KERNELS_TRANSFORM_BYTE_PLANES_H_
#define KVSTOW_KERNELS_TRANSFORM_BYTE_PLANES_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/page/page.h"

namespace kvstow {

// `planes` has DTypeBytes(dtype) planes of `count` bytes each.
void SplitBytes(DType dtype, const uint8_t* raw, size_t count, std::span<uint8_t* const> planes);
void MergeBytes(DType dtype, std::span<const uint8_t* const> planes, size_t count, uint8_t* raw);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_TRANSFORM_BYTE_PLANES_H_
