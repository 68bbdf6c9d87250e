// Rotations of neighbouring rows of a matrix, gathered and then applied together.
//
// An eigenvector takes thousands of rotations (tridiagonal_qr.h). Each alone goes through two whole
// rows, so a large matrix comes from memory again for every few thousand of them. Here a block of
// columns stays in the cache while all that were gathered are applied to it (Van Zee, van de Geijn
// and Quintana-Orti, "Restructuring the Tridiagonal and Bidiagonal QR Algorithms", 2014).
//
//   RowRotations rotations(rows, columns, matrix);   // [rows, columns], F64
//   rotations.Add(k, c, s);                          // of rows k and k + 1, as in QrStep
//   rotations.Apply();                               // the rest
//
// For one caller. Sums are the same on one SIMD target.
#ifndef KVSTOW_KERNELS_TRANSFORM_ROW_ROTATIONS_H_
#define KVSTOW_KERNELS_TRANSFORM_ROW_ROTATIONS_H_

#include <cstddef>
#include <vector>

namespace kvstow {

class RowRotations {
 public:
  struct Rotation {
    double c, s;
  };
  // Rotations of rows `first` and first + 1, then first + 1 and first + 2, and so on.
  struct Sweep {
    size_t first, begin, count;  // of rotations, from `begin` on
  };

  // `matrix` outlives this.
  RowRotations(size_t rows, size_t columns, double* matrix)
      : rows_(rows), columns_(columns), matrix_(matrix) {}

  void Add(size_t k, double c, double s) {
    if (rotations_.size() == kMost) Apply();
    if (sweeps_.empty() || sweeps_.back().first + sweeps_.back().count != k)
      sweeps_.push_back({k, rotations_.size(), 0});
    ++sweeps_.back().count;
    rotations_.push_back({c, s});
  }
  void Apply();

 private:
  static constexpr size_t kMost = size_t{1} << 20;  // that are gathered

  const size_t rows_, columns_;
  double* const matrix_;
  std::vector<Rotation> rotations_;
  std::vector<Sweep> sweeps_;
  std::vector<double> block_;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_TRANSFORM_ROW_ROTATIONS_H_
