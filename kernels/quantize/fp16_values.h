// keep: stores values as fp16. It is for the piece of a split that is small and must stay exact,
// such as the RoPE part of an MLA vector. F16 pages lose nothing, others 2^-11 of a value.
//
// Body of a slab: all values (fp16).
#ifndef KVSTOW_KERNELS_QUANTIZE_FP16_VALUES_H_
#define KVSTOW_KERNELS_QUANTIZE_FP16_VALUES_H_

#include "kernels/quantize/quantizer.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<Quantizer>> MakeFp16Values(const OpArguments& arguments);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_FP16_VALUES_H_
