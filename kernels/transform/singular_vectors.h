// Singular vectors of a small matrix, for codes by low rank: the same bits on every machine (scalar
// F64, one order of additions, no library).
//
// Free functions, thread-safe. Cost: about rows * columns * s + 10 s^3 operations, s the smaller
// side.
#ifndef KVSTOW_KERNELS_TRANSFORM_SINGULAR_VECTORS_H_
#define KVSTOW_KERNELS_TRANSFORM_SINGULAR_VECTORS_H_

#include <cstddef>
#include <vector>

namespace kvstow {

// Values [rows, columns], rows `stride` apart.
struct MatrixView {
  const float* values = nullptr;
  size_t rows = 0, columns = 0, stride = 0;
};

// Returns the `count` <= min(rows, columns) right singular vectors of the largest singular values,
// [count, columns], orthonormal up to rounding; zeros where a singular value is 0.
std::vector<float> RightSingularVectors(const MatrixView& m, size_t count);

// y[r, k] = sum over the columns of m[r, c] vectors[k, c], [rows, count].
std::vector<float> Project(const MatrixView& m, const std::vector<float>& vectors, size_t count);

// Returns the eigenvectors of a symmetric matrix [n, n] as rows, those of the largest eigenvalues
// first; `values` receives the eigenvalues. Householder's reduction, then QR steps with Wilkinson's
// shift (Golub and Van Loan, Matrix Computations, 8.3).
std::vector<double> SymmetricEigenvectors(std::vector<double> matrix, size_t n,
                                          std::vector<double>& values);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_TRANSFORM_SINGULAR_VECTORS_H_
