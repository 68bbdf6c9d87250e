// Linear algebra of a calibration: the whitening of a slab's vectors, and the principal components
// of whitened vectors. Eigen stays within the .cc.
//
// Free functions, thread-safe.
#ifndef KVSTOW_KERNELS_CALIBRATION_CALIBRATION_BASIS_H_
#define KVSTOW_KERNELS_CALIBRATION_CALIBRATION_BASIS_H_

#include <cstddef>
#include <span>
#include <vector>

namespace kvstow {

// The whitening of one head of one slab: `forward` multiplies the head's columns of a vector, and
// `inverse` undoes that. Both are symmetric, [size, size].
struct WhiteningBlock {
  size_t column = 0, size = 0;
  std::vector<double> forward, inverse;
};

// Returns gain * M^(1/2) for a symmetric metric M [size, size]. M is scaled to trace `size`, and
// its eigenvalues are at least a thousandth of their mean: a direction that costs next to nothing
// must not blow up when it is undone.
WhiteningBlock WhitenByMetric(size_t column, std::span<const float> metric, size_t size,
                              double gain);
// Returns the same factor for every channel.
WhiteningBlock WhitenByScale(size_t column, size_t size, double scale);
// Returns a factor for each channel from `column` on, none of them 0.
WhiteningBlock WhitenByScales(size_t column, std::span<const double> scales);

// All components, the largest variance first, row by row. encode[i] gives a coefficient from a
// vector. decode[i] is what a coefficient adds to a vector. decode is the inverse of encode.
struct Basis {
  size_t width = 0;
  std::vector<float> encode, decode;  // [width, width]
};

// Returns the `rank` <= width orthonormal directions, row by row, in which vectors of these
// `moments` [width, width] have the largest variance, the largest first. It is exact when less than
// half of them are left out or `width` <= 512. Else it iterates a subspace from a fixed random
// start (Halko et al., arXiv 0909.4061); time then grows with width^2 * rank. F32 products: the
// same on one SIMD target.
std::vector<float> PrincipalComponents(std::vector<double> moments, size_t width, size_t rank);

// outputs = bias + inputs * map, with the least squares over samples.
struct LinearMap {
  size_t inputs = 0;
  std::vector<float> bias;  // [outputs]
  std::vector<float> map;   // [inputs, outputs]
};
// `x` is [samples, inputs], maybe without inputs, and `y` is [samples, outputs]. A ridge of a
// thousandth of the inputs' mean variance holds down weights that the samples leave free.
LinearMap FitLinear(const std::vector<float>& x, const std::vector<float>& y, size_t samples);

// The last columns of vectors, foretold from the first `inputs` of them.
struct Foretold {
  std::vector<float> map;    // [inputs, outputs]
  std::vector<double> rest;  // moments of what is left, [outputs, outputs]
};
// `moments` [width, width] are those of the vectors. The last input is constant, and FitLinear's
// ridge holds down the weights of the others.
Foretold Foretell(const std::vector<double>& moments, size_t width, size_t inputs);

// `moments` [width, width] are those of vectors whose columns `blocks` cover once.
Basis FitBasis(std::vector<double> moments, size_t width, std::span<const WhiteningBlock> blocks);

// Returns x of A x = b for a symmetric, positive semidefinite A [b.size(), b.size()].
std::vector<double> SolveSymmetric(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CALIBRATION_CALIBRATION_BASIS_H_
