#include "kernels/calibration/calibration_moments.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/transform/dense_product.h"

namespace kvstow {

void FirstMoments::Add(const float* x, size_t count) {
  for (size_t t = 0; t < count; ++t, x += sums_.size()) {
    for (size_t j = 0; j < sums_.size(); ++j) {
      sums_[j] += x[j];
      squares_[j] += double{x[j]} * x[j];
    }
  }
  count_ += count;
}

std::vector<float> FirstMoments::Mean() const {
  std::vector<float> out;
  for (const double sum : sums_) {
    out.push_back(static_cast<float>(sum / static_cast<double>(std::max<uint64_t>(count_, 1))));
  }
  return out;
}

double FirstMoments::Variance(size_t column) const {
  const auto n = static_cast<double>(std::max<uint64_t>(count_, 1));
  return std::max(squares_[column] / n - sums_[column] / n * (sums_[column] / n), 0.0);
}

double FirstMoments::Spread(size_t first, size_t size) const {
  double sum = 0;
  for (size_t j = first; j < first + size; ++j) sum += Variance(j);
  return std::sqrt(sum / static_cast<double>(size));
}

void SecondMoments::Add(const float* x, size_t count) {
  constexpr size_t kRows = PackedMatrix::kPanel;
  PackedMatrix tokens(count, width_);
  for (size_t t = 0; t < count; ++t) tokens.SetRow(t, {x + t * width_, width_});
  std::vector<float> transposed(kRows * count), products(kRows * width_);
  // A band of rows of x' x at a time, from the diagonal on.
  for (size_t first = 0; first < width_; first += kRows) {
    const size_t rows = std::min(kRows, width_ - first), columns = width_ - first;
    for (size_t i = 0; i < rows; ++i) {
      for (size_t t = 0; t < count; ++t) transposed[i * count + t] = x[t * width_ + first + i];
    }
    MultiplyRows(transposed.data(), rows, tokens, {first, columns}, products.data(), columns);
    for (size_t i = 0; i < rows; ++i) {
      double* const sums = sums_.data() + (first + i) * width_ + first;
      for (size_t j = i; j < columns; ++j) sums[j] += products[i * columns + j];
    }
  }
  count_ += count;
}

std::vector<double> SecondMoments::Take() && {
  const double scale = 1 / static_cast<double>(std::max<uint64_t>(count_, 1));
  for (size_t i = 0; i < width_; ++i) {
    for (size_t j = i; j < width_; ++j) {
      sums_[i * width_ + j] *= scale;
      sums_[j * width_ + i] = sums_[i * width_ + j];
    }
  }
  return std::move(sums_);
}

}  // namespace kvstow
