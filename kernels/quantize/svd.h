// svd(b0,b1,...): each head of a slab in its own singular basis, with bits by singular value (SVDq,
// arXiv 2502.15304, for K).
//
// A head's singular channels, as many as its tokens or channels, the largest first, are cut into as
// many equal parts as there are arguments; those of part i are coded in b_i bits (0..8), none of
// more bits than the part before: 0 drops them. Channel j of m is in part floor(j parts / m).
//
//   V = right singular vectors of what is kept, rounded to fp16, Y = X V^T
//   each column of Y as affine(bits) of one group (affine.h), X' = Y' V
//
// A page carries its own basis: 16 bits times kept channels over tokens a value. The published
// figure of 1.25 bits leaves it out.
//
// Body of a slab, head after head: V (fp16), the steps and the minima of the kept channels (fp16),
// then of each kept channel the codes of its tokens, bit-packed, each from a whole byte on.
#ifndef KVSTOW_KERNELS_QUANTIZE_SVD_H_
#define KVSTOW_KERNELS_QUANTIZE_SVD_H_

#include "kernels/quantize/quantizer.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<Quantizer>> MakeSvd(const OpArguments& arguments);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_SVD_H_
