// Products with a matrix that is used many times: rows times matrix, dense and sparse.
//
//   PackedMatrix m(rows, columns);
//   for (size_t i = 0; i < rows; ++i) m.SetRow(i, row);
//   MultiplyRows(x, count, m, {0, columns}, y, columns);     // y[t] = x[t] * m
//
// All values are F32. Every sum runs over the matrix's rows in ascending order, with fused
// multiply-adds where the SIMD target has them. So one target gives the same result for every
// thread, batch and tiling; targets differ by rounding only. Highway chooses the target at run
// time.
//
// PackedMatrix: set it whole, then share between threads. Functions are thread-safe.
#ifndef KVSTOW_KERNELS_TRANSFORM_DENSE_PRODUCT_H_
#define KVSTOW_KERNELS_TRANSFORM_DENSE_PRODUCT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvstow {

class PackedMatrix {
 public:
  // Columns of a panel. A panel stores all of its rows together; zeros pad the last one.
  static constexpr size_t kPanel = 64;

  PackedMatrix() = default;
  PackedMatrix(size_t rows, size_t columns);  // zeros

  // `values` has columns() entries.
  void SetRow(size_t row, std::span<const float> values);
  // `values` has rows() entries.
  void SetColumn(size_t column, std::span<const float> values);

  size_t rows() const { return rows_; }
  size_t columns() const { return columns_; }
  // Returns row `row` of the panel that holds columns [panel * kPanel, +kPanel).
  const float* PanelRow(size_t panel, size_t row) const {
    return values_.data() + (panel * rows_ + row) * kPanel;
  }

 private:
  size_t rows_ = 0, columns_ = 0;
  std::vector<float> values_;
};

struct Columns {
  size_t first = 0, count = 0;
};

// y[t, j] = sum over i of x[t, i] * m[i, columns.first + j] for `count` rows x of m.rows() values.
// Rows of y are `stride` >= columns.count apart.
void MultiplyRows(const float* x, size_t count, const PackedMatrix& m, Columns columns, float* y,
                  size_t stride);

// Rows that list only their values other than zero.
struct NonZeroRows {
  std::vector<uint32_t> ends;     // where each row's entries end
  std::vector<uint32_t> indices;  // ascending within a row, below m.rows()
  std::vector<float> values;
  size_t count() const { return ends.size(); }
};

// Lists the values of `count` rows of `width` values.
NonZeroRows ListNonZeros(const float* x, size_t count, size_t width);

// Does the same for sparse rows. Only listed values cost anything.
void MultiplyNonZeroRows(const NonZeroRows& x, const PackedMatrix& m, Columns columns, float* y,
                         size_t stride);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_TRANSFORM_DENSE_PRODUCT_H_
