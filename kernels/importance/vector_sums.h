// Sums over the channels of many vectors, for scores of keys and values.
//
// The order of additions is fixed, so that a sum has the same bits on every SIMD target. There are
// 16 partial sums in F32, channel c in sum c % 16. Then sum i takes in sum i + 8, i + 4, i + 2 and
// i + 1. No multiply-add is fused. Squares of values beyond 1e18 overflow to Inf. Free functions,
// thread-safe.
#ifndef KVSTOW_KERNELS_IMPORTANCE_VECTOR_SUMS_H_
#define KVSTOW_KERNELS_IMPORTANCE_VECTOR_SUMS_H_

#include <cstddef>

namespace kvstow {

// `count` vectors of `dim` floats, `stride` floats apart.
struct Vectors {
  const float* x = nullptr;
  size_t count = 0, stride = 0, dim = 0;
  const float* operator[](size_t i) const { return x + i * stride; }
};

// kernels/page/loops.h says what a table is.
struct VectorSums {
  // out[i] = x_i . y_i. The y_i stand `y_stride` apart; 0 = the same y for all.
  void (*dot_products)(const Vectors& x, const float* y, size_t y_stride, float* out);
  // Adds scales[i] x_i to sum [dim], vector after vector.
  void (*add_scaled)(const Vectors& x, const float* scales, float* sum);
  // The least and the largest value of each channel, [dim] each; at least one vector.
  void (*channel_bounds)(const Vectors& x, float* low, float* high);
  // out[i] = the standard deviation across channels of (x_i - low) * inverse.
  void (*deviations)(const Vectors& x, const float* low, const float* inverse, float* out);
  // out[i][f] = the length of the pair (x_i[f], x_i[f + dim / 2]); vectors of `out` are
  // `out_stride` apart.
  void (*pair_lengths)(const Vectors& x, float* out, size_t out_stride);
  // out[i] = the sum of the values of x_i that are above `above`.
  void (*sums_above)(const Vectors& x, float above, float* out);
  static const VectorSums& Reference();
  static const VectorSums& Best();
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_IMPORTANCE_VECTOR_SUMS_H_
