// sketch(bits): a codebook of bits - 1 bits, then one bit a value for what it leaves, so that inner
// products are unbiased (TurboQuant's `prod` variant, arXiv 2504.19874; the residual stage is QJL,
// arXiv 2406.03482).
//
//   r = fp16(|x|), u = x sqrt(d) / r, q = nearest entry to u, e = u - c[q], a = fp16(|e|)
//   s = sign(S e), x' = r / sqrt(d) (c[q] + sqrt(pi / 2) / d a S^T s)
//
// c is the codebook of codebook.h with bits - 1 bits. bits: 2..5. S is d x d, Gaussian and fixed:
// entry (i, j) is the sum of twelve 16-bit numbers, less its mean, over 2^16; they are the four
// parts, the low first, of splitmix64(3 (i d + j) + k), k = 0, 1, 2. S e is summed channel after
// channel, S^T s row after row. A sum that is 0 or more has sign +.
//
// Unbiased is not close: its squared error is above that of `codebook` of the same bits, and a
// softmax feels the variance. For comparison; use codebook.
//
// Body of a slab: r of all vectors (fp16), a of all vectors (fp16), the codes of bits - 1 bits,
// then a bit a value, 1 for +; both bit-packed.
#ifndef KVSTOW_KERNELS_QUANTIZE_SKETCH_H_
#define KVSTOW_KERNELS_QUANTIZE_SKETCH_H_

#include "kernels/quantize/quantizer.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<Quantizer>> MakeSketch(const OpArguments& arguments);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_SKETCH_H_
