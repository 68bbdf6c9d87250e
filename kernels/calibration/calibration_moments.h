// Sums over many vectors: means, and second moments in blocks.
//
// Values add up in F64, products of one page at a time in F32 (dense_product.h). Not thread-safe.
#ifndef KVSTOW_KERNELS_CALIBRATION_CALIBRATION_MOMENTS_H_
#define KVSTOW_KERNELS_CALIBRATION_CALIBRATION_MOMENTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvstow {

class FirstMoments {
 public:
  explicit FirstMoments(size_t width) : sums_(width), squares_(width) {}

  // `x` is [count, width].
  void Add(const float* x, size_t count);
  uint64_t count() const { return count_; }
  std::vector<float> Mean() const;
  // Returns the mean square of a column's differences from its mean.
  double Variance(size_t column) const;
  // Returns the root of the mean variance of columns [first, first + size).
  double Spread(size_t first, size_t size) const;

 private:
  uint64_t count_ = 0;
  std::vector<double> sums_, squares_;
};

class SecondMoments {
 public:
  explicit SecondMoments(size_t width) : width_(width), sums_(width * width) {}

  void Add(const float* x, size_t count);
  uint64_t count() const { return count_; }
  size_t width() const { return width_; }
  // Returns the mean of x' x, [width, width], symmetric, and gives it away.
  std::vector<double> Take() &&;

 private:
  const size_t width_;
  uint64_t count_ = 0;
  std::vector<double> sums_;  // on and above the diagonal
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CALIBRATION_CALIBRATION_MOMENTS_H_
