// Linear algebra of a calibration: what whitens a slab's vectors, and the principal components of
// whitened vectors. The one place that uses Eigen.
//
// Free functions, thread-safe.
#ifndef KVSTOW_KERNELS_CALIBRATION_CALIBRATION_BASIS_H_
#define KVSTOW_KERNELS_CALIBRATION_CALIBRATION_BASIS_H_

#include <cstddef>
#include <span>
#include <vector>

namespace kvstow {

// Whitening of one head of one slab: `forward` times its columns of a vector, and the inverse. Both
// are symmetric, [size, size].
struct WhiteningBlock {
  size_t column = 0, size = 0;
  std::vector<double> forward, inverse;
};

// gain * M^(1/2) for a symmetric metric M [size, size], scaled to trace `size` and with eigenvalues
// of at least a thousandth of their mean: a direction that costs next to nothing must not blow up
// when it is undone.
WhiteningBlock WhitenByMetric(size_t column, std::span<const float> metric, size_t size,
                              double gain);
// The same factor for every channel.
WhiteningBlock WhitenByScale(size_t column, size_t size, double scale);

// All components, the largest variance first, row by row: encode[i] gives a coefficient from a
// vector, decode[i] is what a coefficient adds to a vector. decode is the inverse of encode.
struct Basis {
  size_t width = 0;
  std::vector<float> encode, decode;  // [width, width]
};

// The `rank` <= width orthonormal directions, row by row, in which vectors of these `moments`
// [width, width] have the largest variance, the largest first. Exact when few are left out or
// `width` is small, else by subspace iteration from a fixed random start (Halko et al., arXiv
// 0909.4061): time grows with width^2 * rank. F32 products: the same on one SIMD target.
std::vector<float> PrincipalComponents(std::vector<double> moments, size_t width, size_t rank);

// outputs = bias + inputs * map, with the least squares over samples.
struct LinearMap {
  size_t inputs = 0;
  std::vector<float> bias;  // [outputs]
  std::vector<float> map;   // [inputs, outputs]
};
// `x` [samples, inputs], maybe without inputs, and `y` [samples, outputs]; a ridge of a thousandth
// of the inputs' mean variance holds weights down that nothing else does.
LinearMap FitLinear(const std::vector<float>& x, const std::vector<float>& y, size_t samples);

// `moments` [width, width] of vectors whose columns `blocks` cover once.
Basis FitBasis(std::vector<double> moments, size_t width, std::span<const WhiteningBlock> blocks);

// x of A x = b for a symmetric, positive semidefinite A [b.size(), b.size()].
std::vector<double> SolveSymmetric(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CALIBRATION_CALIBRATION_BASIS_H_
