#include "kernels/transform/singular_vectors.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/transform/tridiagonal_qr.h"

namespace kvstow {
namespace {

constexpr double kEpsilon = 0x1p-52;

// A tridiagonal matrix T, and the basis in which it stands for the matrix: basis^T T basis.
struct Reduced {
  Tridiagonal t;
  std::vector<double> basis;  // rows, [n, n]
};

// Reflects `a` along unit vector v, whose first `from` entries are 0: H a H, H = I - 2 v v^T.
void ReflectBothSides(size_t n, size_t from, const std::vector<double>& v, std::vector<double>& a) {
  std::vector<double> p(n);
  double along = 0;
  for (size_t i = from; i < n; ++i) {
    for (size_t j = from; j < n; ++j) p[i] += 2 * a[i * n + j] * v[j];
    along += v[i] * p[i];
  }
  for (size_t i = from; i < n; ++i) p[i] -= along * v[i];
  for (size_t i = from; i < n; ++i) {
    for (size_t j = from; j < n; ++j) a[i * n + j] -= v[i] * p[j] + p[i] * v[j];
  }
}

void ReflectRows(size_t n, size_t from, const std::vector<double>& v, std::vector<double>& rows) {
  std::vector<double> sum(n);
  for (size_t i = from; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) sum[j] += v[i] * rows[i * n + j];
  }
  for (size_t i = from; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) rows[i * n + j] -= 2 * v[i] * sum[j];
  }
}

Reduced Reduce(std::vector<double> a, size_t n) {
  Reduced out{{std::vector<double>(n), std::vector<double>(n - 1)}, std::vector<double>(n * n)};
  Tridiagonal& t = out.t;
  for (size_t i = 0; i < n; ++i) out.basis[i * n + i] = 1;
  std::vector<double> v(n);
  for (size_t k = 0; k + 2 < n; ++k) {
    double squares = 0;
    for (size_t i = k + 1; i < n; ++i) squares += a[i * n + k] * a[i * n + k];
    const double head = a[(k + 1) * n + k], length = std::sqrt(squares);
    const double turned = head > 0 ? -length : length;
    const double reflector = std::sqrt(2 * (squares - turned * head));
    t.beside[k] = head;
    if (!(squares - head * head > 0) || !(reflector > 0)) continue;  // nothing below to remove
    std::fill(v.begin(), v.end(), 0.0);
    for (size_t i = k + 1; i < n; ++i) v[i] = a[i * n + k] / reflector;
    v[k + 1] -= turned / reflector;
    t.beside[k] = turned;
    ReflectBothSides(n, k + 1, v, a);
    ReflectRows(n, k + 1, v, out.basis);
  }
  if (n > 1) t.beside[n - 2] = a[(n - 1) * n + n - 2];
  for (size_t i = 0; i < n; ++i) t.diagonal[i] = a[i * n + i];
  return out;
}

void RotateRows(size_t n, size_t k, double c, double s, std::vector<double>& rows) {
  double *const upper = &rows[k * n], *const lower = upper + n;
  for (size_t j = 0; j < n; ++j) {
    const double u = upper[j], l = lower[j];
    upper[j] = c * u + s * l;
    lower[j] = c * l - s * u;
  }
}

// m m^T when `of_rows`, else m^T m.
std::vector<double> Gram(const MatrixView& m, bool of_rows) {
  const size_t n = of_rows ? m.rows : m.columns;
  std::vector<double> gram(n * n);
  if (of_rows) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j <= i; ++j) {
        double sum = 0;
        const float *const a = m.values + i * m.stride, *const b = m.values + j * m.stride;
        for (size_t c = 0; c < m.columns; ++c) sum += double{a[c]} * double{b[c]};
        gram[i * n + j] = gram[j * n + i] = sum;
      }
    }
    return gram;
  }
  for (size_t r = 0; r < m.rows; ++r) {
    const float* const row = m.values + r * m.stride;
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) gram[i * n + j] += double{row[i]} * double{row[j]};
    }
  }
  return gram;
}

}  // namespace

std::vector<double> SymmetricEigenvectors(std::vector<double> matrix, size_t n,
                                          std::vector<double>& values) {
  values.assign(n, 0);
  if (n == 0) return {};
  auto [t, basis] = Reduce(std::move(matrix), n);
  Diagonalize(t,
              [&rows = basis, n](size_t k, double c, double s) { RotateRows(n, k, c, s, rows); });
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&d = t.diagonal](size_t a, size_t b) { return d[a] > d[b]; });
  std::vector<double> rows(n * n);
  for (size_t i = 0; i < n; ++i) {
    values[i] = t.diagonal[order[i]];
    std::copy_n(&basis[order[i] * n], n, &rows[i * n]);
  }
  return rows;
}

std::vector<float> RightSingularVectors(const MatrixView& m, size_t count) {
  const bool of_rows = m.rows < m.columns;
  const size_t n = of_rows ? m.rows : m.columns;
  std::vector<double> values;
  const std::vector<double> vectors = SymmetricEigenvectors(Gram(m, of_rows), n, values);
  std::vector<float> out(count * m.columns);
  if (!of_rows) {
    std::copy_n(vectors.begin(), out.size(), out.begin());
    return out;
  }
  // Left vectors u: the right one is m^T u over its length.
  std::vector<double> right(m.columns);
  for (size_t k = 0; k < count; ++k) {
    std::fill(right.begin(), right.end(), 0.0);
    for (size_t r = 0; r < m.rows; ++r) {
      const double u = vectors[k * n + r];
      for (size_t c = 0; c < m.columns; ++c) right[c] += u * double{m.values[r * m.stride + c]};
    }
    double squares = 0;
    for (const double v : right) squares += v * v;
    const bool is_zero = !(squares > kEpsilon * std::max(values[0], 0.0));
    const double inverse = is_zero ? 0 : 1 / std::sqrt(squares);
    for (size_t c = 0; c < m.columns; ++c) {
      out[k * m.columns + c] = static_cast<float>(right[c] * inverse);
    }
  }
  return out;
}

std::vector<float> Project(const MatrixView& m, const std::vector<float>& vectors, size_t count) {
  std::vector<float> out(m.rows * count);
  for (size_t r = 0; r < m.rows; ++r) {
    for (size_t k = 0; k < count; ++k) {
      double sum = 0;
      for (size_t c = 0; c < m.columns; ++c) {
        sum += double{m.values[r * m.stride + c]} * double{vectors[k * m.columns + c]};
      }
      out[r * count + k] = static_cast<float>(sum);
    }
  }
  return out;
}

}  // namespace kvstow
