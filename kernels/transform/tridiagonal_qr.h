// Diagonalizes a symmetric tridiagonal matrix: QR steps with Wilkinson's shift (Golub and Van Loan,
// Matrix Computations, 8.3).
//
// Free function, thread-safe; scalar F64, the same rotations on every machine.
#ifndef KVSTOW_KERNELS_TRANSFORM_TRIDIAGONAL_QR_H_
#define KVSTOW_KERNELS_TRANSFORM_TRIDIAGONAL_QR_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace kvstow {

struct Tridiagonal {
  std::vector<double> diagonal, beside;  // n, n - 1
};

// One QR step on the unreduced block [begin, end]. Calls rotate(k, c, s) for each of its rotations,
// of neighbours k and k + 1, with k from `begin` on: of rows that stand for the block they make
// c row[k] + s row[k + 1] and c row[k + 1] - s row[k].
template <typename Rotate>
void QrStep(size_t begin, size_t end, Tridiagonal& t, Rotate& rotate) {
  std::vector<double>&d = t.diagonal, &e = t.beside;
  const double half = (d[end - 1] - d[end]) / 2, below = e[end - 1];
  const double root = std::sqrt(half * half + below * below);
  const double shift = d[end] - below * below / (half + (half < 0 ? -root : root));
  double x = d[begin] - shift, z = e[begin];
  for (size_t k = begin; k < end; ++k) {
    const double r = std::sqrt(x * x + z * z);
    const double c = r > 0 ? x / r : 1, s = r > 0 ? z / r : 0;
    if (k > begin) e[k - 1] = r;
    const double a = d[k], b = e[k], g = d[k + 1];
    d[k] = c * c * a + 2 * c * s * b + s * s * g;
    d[k + 1] = s * s * a - 2 * c * s * b + c * c * g;
    e[k] = c * s * (g - a) + (c * c - s * s) * b;
    x = e[k];
    if (k + 1 < end) {
      z = s * e[k + 1];
      e[k + 1] *= c;
    }
    rotate(k, c, s);
  }
}

// Leaves the eigenvalues in `t.diagonal`, in any order. Rows that all rotations were applied to are
// the eigenvectors: of an identity those of `t`, of a basis Q with Q^T t Q = A those of A.
template <typename Rotate>
void Diagonalize(Tridiagonal& t, Rotate&& rotate) {
  constexpr double kEpsilon = 0x1p-52;
  constexpr size_t kMostSteps = 60;  // for each eigenvalue; three are usual
  const size_t n = t.diagonal.size();
  double largest = 0;
  for (const double d : t.diagonal) largest = std::max(largest, std::abs(d));
  for (const double e : t.beside) largest = std::max(largest, std::abs(e));
  size_t left = kMostSteps * n;
  for (size_t end = n - 1; end > 0 && left > 0;) {
    size_t begin = end;
    while (begin > 0 && std::abs(t.beside[begin - 1]) > kEpsilon * largest) --begin;
    if (begin == end) {
      --end;
      continue;
    }
    QrStep(begin, end, t, rotate);
    --left;
  }
}

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_TRANSFORM_TRIDIAGONAL_QR_H_
