// lowrank(rank): each head of a slab as a product of two thin matrices (GEAR, arXiv 2403.05527, for
// what its quantizer leaves: `affine(bits=4)|residual|lowrank(rank=4)`).
//
//   X = [tokens, channels] of a head, V = its leading right singular vectors, rounded to fp16
//   A = fp16(X V^T), X' = A V
//
// rank: 1..64 (4); a head with fewer tokens or channels has as many as these. X' is summed in
// order of the vectors.
//
// Body of a slab, head after head: V [rank, channels] (fp16), A [tokens, rank] (fp16).
#ifndef KVSTOW_KERNELS_QUANTIZE_LOW_RANK_H_
#define KVSTOW_KERNELS_QUANTIZE_LOW_RANK_H_

#include <vector>

#include "kernels/quantize/quantizer.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<Quantizer>> MakeLowRank(const OpArguments& arguments);

// Rounds to fp16 in place and writes as such. False when a value is beyond.
bool RoundToHalves(std::vector<float>& values, uint8_t* out);

// y[r, c] += sum over k < count of a[r, k] vectors[k, c]; rows of y are `stride` apart.
void AddProduct(const std::vector<float>& a, const std::vector<float>& vectors, size_t count,
                size_t stride, float* y);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_LOW_RANK_H_
