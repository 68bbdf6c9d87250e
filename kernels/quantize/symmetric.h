// symmetric(bits,group,k,v): one step for a group of values, whole numbers of steps around 0.
//
//   T = 2^(bits-1) - 1, s = fp16(max |x| / T), q = clip(round(x / s), -T, T), x' = q s
//
// bits: 2..8 (at 2 only three levels are used: prefer affine). group, k and v: group_axis.h.
// Rounding is to nearest even; x is multiplied by the F32 reciprocal of s. A group whose step
// rounds to 0 decodes to 0.
//
// Body of a slab: the steps of all groups (fp16), then q + 2^(bits-1) in the order of the values,
// bit-packed; code 0 is not used.
#ifndef KVSTOW_KERNELS_QUANTIZE_SYMMETRIC_H_
#define KVSTOW_KERNELS_QUANTIZE_SYMMETRIC_H_

#include "kernels/quantize/quantizer.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<Quantizer>> MakeSymmetric(const OpArguments& arguments);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_SYMMETRIC_H_
