// signs(rows): a head vector as its length and the signs of a Gaussian sketch of it (QJL, arXiv
// 2406.03482). Meant for K: inner products with what is decoded are unbiased over draws of S.
//
//   r = fp16(|x|), s = sign(S x), x' = sqrt(pi / 2) / m r S^T s,  S is m x d, m = rows d
//
// rows: 1..64 signs a value (2). S is that of sketch.h with m rows: its entry (i, j) is made of
// splitmix64(3 (i d + j) + k). S x is summed channel after channel, S^T s row after row; a sum that
// is 0 or more has sign +. The squared error is about pi / (2 rows) of the vector's energy.
//
// Body of a slab: the lengths of all vectors (fp16), then m bits a vector, 1 for +, bit-packed.
#ifndef KVSTOW_KERNELS_QUANTIZE_SIGNS_H_
#define KVSTOW_KERNELS_QUANTIZE_SIGNS_H_

#include "kernels/quantize/quantizer.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<Quantizer>> MakeSigns(const OpArguments& arguments);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_SIGNS_H_
