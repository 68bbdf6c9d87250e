// hadamard: a signed Hadamard transform of each head vector (QuaRot, arXiv 2404.00456; TurboQuant,
// arXiv 2504.19874). It spreads a vector's energy over its channels. Their values become close to
// Gaussian, as fixed quantizers expect.
//
//   y = H D x,  D = diag(signs), H orthonormal
//
// The sign of channel c is minus when bit 0 of splitmix64(c) is set. A head_dim that is no power of
// two is cut into blocks, the largest power of two first (80 = 64 + 16, 576 = 512 + 64: MLA's
// latent and RoPE parts stay apart), each transformed by itself. Stages go from stride 1 up; then
// one multiplication by 1/sqrt(n).
#ifndef KVSTOW_KERNELS_TRANSFORM_HADAMARD_H_
#define KVSTOW_KERNELS_TRANSFORM_HADAMARD_H_

#include <bit>
#include <cstddef>
#include <iterator>

#include "kernels/transform/transform.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<Transform>> MakeHadamard(const OpArguments& arguments);

// Transforms `count` vectors of `dim` values in place, by the blocks of H. Multiplies values by
// `dim` signs, 1 or -1, before and after; null is no signs.
void HadamardBlocks(size_t count, size_t dim, float* values, const float* before = nullptr,
                    const float* after = nullptr);

// Returns 1/sqrt(n) for n a power of two up to kMaxHeadDim. It is tabulated: no machine's sqrt
// matters.
inline float HadamardScale(size_t n) {
  constexpr float kScale[] = {1.0f,    0x1.6a09e6p-1f, 0.5f,    0x1.6a09e6p-2f,
                              0.25f,   0x1.6a09e6p-3f, 0.125f,  0x1.6a09e6p-4f,
                              0.0625f, 0x1.6a09e6p-5f, 0.03125f};
  static_assert(kMaxHeadDim == 1u << (std::size(kScale) - 1));
  return kScale[std::countr_zero(n)];
}

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_TRANSFORM_HADAMARD_H_
