// minifloat(format): each value as an 8-bit float, with one fp16 scale a head vector.
//
//   a = fp16(max |x|), q = E4M3(x 448 / a), x' = E4M3^-1(q) a / 448
//
// format: `e4m3`, the OCP 8-bit floating point format "FN": bias 7, no infinities, largest value
// 448. To nearest even, saturating; x is multiplied by the F32 quotient 448 / a.
//
// Body of a slab: a of all vectors (fp16), then one code a value.
#ifndef KVSTOW_KERNELS_QUANTIZE_MINIFLOAT_H_
#define KVSTOW_KERNELS_QUANTIZE_MINIFLOAT_H_

#include "kernels/quantize/e4m3.h"
#include "kernels/quantize/quantizer.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<Quantizer>> MakeMinifloat(const OpArguments& arguments);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_MINIFLOAT_H_
