// zero: stores nothing; values come back as 0. It is for the piece of a split that is dropped, such
// as the channels of K that ThinK prunes (arXiv 2407.21018).
#ifndef KVSTOW_KERNELS_QUANTIZE_ZERO_H_
#define KVSTOW_KERNELS_QUANTIZE_ZERO_H_

#include <memory>

#include "kernels/quantize/quantizer.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<Quantizer>> MakeZero(const OpArguments& arguments);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_ZERO_H_
