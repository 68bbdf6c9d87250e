// codebook(bits,norm): a head vector as its length and a codebook entry for each direction's
// coordinate (TurboQuant, arXiv 2504.19874, its mean-square-error variant).
//
//   r = fp16(|x|), u = x sqrt(d) / r, q = the entry nearest to u, x' = r c[q] / sqrt(d)
//
// Meant for rotated vectors, whose coordinates u are those of a random point on a sphere. c is the
// Lloyd-Max codebook of that law for d = 64 and 128, and the Gaussian's for any other d (a head_dim
// that is no power of two is rotated by blocks, and small ones are rare). The tables are constants
// of the format; tests/reference/codebooks.py derives them.
//
// bits: 1..4. norm: `plain`, or `corrected`, which stores fp16(|x| sqrt(d) / |c[q]|) instead of r,
// so that |x'| = |x|; q is that of `plain`. Ties go to the lower entry.
//
// Body of a slab: the lengths of all vectors (fp16), then the codes in the order of the values,
// bit-packed. Entries are in ascending order.
#ifndef KVSTOW_KERNELS_QUANTIZE_CODEBOOK_H_
#define KVSTOW_KERNELS_QUANTIZE_CODEBOOK_H_

#include <vector>

#include "kernels/quantize/quantizer.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<Quantizer>> MakeCodebook(const OpArguments& arguments);

// All 2^bits entries for vectors of `dim` values, in ascending order.
std::vector<float> LloydMax(uint32_t bits, uint32_t dim);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_CODEBOOK_H_
