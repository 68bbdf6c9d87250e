#include "kernels/calibration/calibration_basis.h"

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/page/split_mix.h"
#include "kernels/transform/dense_product.h"
#include "kernels/transform/row_rotations.h"
#include "kernels/transform/tridiagonal_qr.h"

namespace kvstow {
namespace {

using Matrix = Eigen::MatrixXd;

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr double kEigenvalueFloor = 1e-3;
constexpr size_t kSmallWidth = 256;
constexpr size_t kExactWidth = 512;
constexpr int kSubspaceIterations = 4;
constexpr double kLeastVariance = 1e-14;
constexpr double kRidge = 1e-3;

Eigen::Index Index(size_t n) { return static_cast<Eigen::Index>(n); }

Eigen::Map<const Matrix> View(const std::vector<double>& values, size_t size) {
  return {values.data(), Index(size), Index(size)};
}

std::vector<double> Values(const Matrix& m) { return {m.data(), m.data() + m.size()}; }

// Returns the eigenvectors of a symmetric matrix as columns, those of the largest eigenvalues last.
//
// Eigen applies each rotation of QR steps to two whole columns at once. For large matrices that is
// two thirds of its time or more, and RowRotations takes a tenth of it. Rows of the transposed
// basis are columns of Eigen's.
Matrix EigenvectorsOf(const Matrix& m) {
  const auto n = static_cast<size_t>(m.rows());
  if (n <= kSmallWidth) {
    return Eigen::SelfAdjointEigenSolver<Matrix>(m).eigenvectors();
  }
  const Eigen::Tridiagonalization<Matrix> reduced(m);
  const auto values = [](const auto& x) {
    return std::vector<double>(x.data(), x.data() + x.size());
  };
  Tridiagonal t{values(Eigen::VectorXd(reduced.diagonal())),
                values(Eigen::VectorXd(reduced.subDiagonal()))};
  const Eigen::MatrixXf packed = reduced.packedMatrix().cast<float>();
  const Eigen::VectorXf coefficients = reduced.householderCoefficients().cast<float>();
  // F32 is as exact as calibrations are, and twice as fast.
  const Eigen::MatrixXf start =
      Eigen::householderSequence(packed, coefficients).setLength(Index(n - 1)).setShift(1);
  Matrix basis = start.cast<double>();
  RowRotations rotations(n, n, basis.data());
  Diagonalize(t, [&](size_t k, double c, double s) { rotations.Add(k, c, s); });
  rotations.Apply();
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](size_t i) { return t.diagonal[i]; });
  Matrix out(Index(n), Index(n));
  for (size_t i = 0; i < n; ++i) out.col(Index(i)) = basis.col(Index(order[i]));
  return out;
}

// The columns of `vectors`, last first, each as a row of floats; `block` maps a block's rows.
std::vector<float> Rows(const Matrix& vectors, std::span<const WhiteningBlock> blocks,
                        std::vector<double> WhiteningBlock::*map) {
  const auto width = static_cast<size_t>(vectors.rows());
  std::vector<float> out(width * width);
  for (const WhiteningBlock& block : blocks) {
    const Matrix mapped =
        View(block.*map, block.size) * vectors.middleRows(Index(block.column), Index(block.size));
    for (size_t i = 0; i < width; ++i) {
      const auto column = mapped.col(Index(width - 1 - i));
      for (size_t j = 0; j < block.size; ++j) {
        out[i * width + block.column + j] = static_cast<float>(column(Index(j)));
      }
    }
  }
  return out;
}

// The last columns, the very last first, each as a row of floats.
std::vector<float> LastColumns(const Matrix& vectors, size_t count) {
  const auto width = static_cast<size_t>(vectors.rows());
  std::vector<float> out(count * width);
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < width; ++j) {
      out[i * width + j] = static_cast<float>(vectors(Index(j), vectors.cols() - 1 - Index(i)));
    }
  }
  return out;
}

// An orthonormal basis of the rows' span, in the order of the rows. Twice Cholesky's factorization
// of their products: the second time for what rounding left in the first.
Matrix Orthonormal(Matrix rows) {
  for (int i = 0; i < 2; ++i) {
    Matrix products = Matrix::Zero(rows.rows(), rows.rows());
    products.selfadjointView<Eigen::Lower>().rankUpdate(rows);
    // Where there are fewer directions than rows, noise fills up.
    const double floor = kLeastVariance * products.diagonal().maxCoeff();
    products.diagonal().array() += floor;
    const Eigen::LLT<Matrix> factor(products);
    factor.matrixL().solveInPlace(rows);
  }
  return rows;
}

}  // namespace

WhiteningBlock WhitenByMetric(size_t column, std::span<const float> metric, size_t size,
                              double gain) {
  const Matrix m =
      Eigen::Map<const Eigen::MatrixXf>(metric.data(), Index(size), Index(size)).cast<double>();
  const Eigen::SelfAdjointEigenSolver<Matrix> solver((m + m.transpose()) / 2);
  const double mean = solver.eigenvalues().cwiseMax(0).mean();
  if (!(mean > 0)) return WhitenByScale(column, size, gain);
  const Eigen::VectorXd roots =
      (solver.eigenvalues() / mean).cwiseMax(kEigenvalueFloor).cwiseSqrt();
  const Matrix& u = solver.eigenvectors();
  return {column, size, Values(gain * (u * roots.asDiagonal() * u.transpose())),
          Values(u * roots.cwiseInverse().asDiagonal() * u.transpose() / gain)};
}

WhiteningBlock WhitenByScale(size_t column, size_t size, double scale) {
  return WhitenByScales(column, std::vector<double>(size, scale));
}

WhiteningBlock WhitenByScales(size_t column, std::span<const double> scales) {
  const Eigen::Map<const Eigen::VectorXd> factors(scales.data(), Index(scales.size()));
  return {column, scales.size(), Values(factors.asDiagonal()),
          Values(factors.cwiseInverse().asDiagonal())};
}

Basis FitBasis(std::vector<double> moments, size_t width, std::span<const WhiteningBlock> blocks) {
  Eigen::Map<Matrix> m(moments.data(), Index(width), Index(width));
  for (const WhiteningBlock& block : blocks) {
    auto rows = m.middleRows(Index(block.column), Index(block.size));
    rows = (View(block.forward, block.size) * rows).eval();
  }
  for (const WhiteningBlock& block : blocks) {
    auto columns = m.middleCols(Index(block.column), Index(block.size));
    columns = (columns * View(block.forward, block.size)).eval();
  }
  const Matrix vectors = EigenvectorsOf(m);
  return {width, Rows(vectors, blocks, &WhiteningBlock::forward),
          Rows(vectors, blocks, &WhiteningBlock::inverse)};
}

std::vector<double> SolveSymmetric(const std::vector<double>& a, const std::vector<double>& b) {
  const Eigen::Map<const Eigen::VectorXd> right(b.data(), Index(b.size()));
  const Eigen::VectorXd x = View(a, b.size()).ldlt().solve(right);
  return {x.data(), x.data() + x.size()};
}

std::vector<float> PrincipalComponents(std::vector<double> moments, size_t width, size_t rank) {
  const Eigen::Map<const Matrix> m(moments.data(), Index(width), Index(width));
  if (width <= kExactWidth || 2 * rank > width) {
    return LastColumns(EigenvectorsOf(m), rank);
  }
  PackedMatrix packed(width, width);
  std::vector<float> row(width);
  for (size_t i = 0; i < width; ++i) {
    std::copy_n(moments.data() + i * width, width, row.begin());
    packed.SetRow(i, row);
  }
  std::vector<float> basis(rank * width), product(rank * width);
  for (size_t i = 0; i < basis.size(); ++i) {
    basis[i] = static_cast<float>(SplitMix64(i) >> 40) * 0x1p-23f - 1.0f;
  }
  Eigen::Map<RowMatrix> q(basis.data(), Index(rank), Index(width));
  const Eigen::Map<RowMatrix> y(product.data(), Index(rank), Index(width));
  for (int i = 0; i < kSubspaceIterations; ++i) {
    MultiplyRows(basis.data(), rank, packed, {0, width}, product.data(), width);
    q = Orthonormal(y.cast<double>()).cast<float>();
  }
  // Within the subspace: its own principal components.
  MultiplyRows(basis.data(), rank, packed, {0, width}, product.data(), width);
  const Matrix inner = (y * q.transpose()).cast<double>();
  const Matrix vectors = EigenvectorsOf((inner + inner.transpose()) / 2);
  const Eigen::MatrixXf turn = vectors.rowwise().reverse().cast<float>();
  const RowMatrix turned = turn.transpose() * q;
  return {turned.data(), turned.data() + turned.size()};
}

LinearMap FitLinear(const std::vector<float>& x, const std::vector<float>& y, size_t samples) {
  const size_t inputs = x.size() / samples, outputs = y.size() / samples;
  using View = Eigen::Map<const RowMatrix>;
  Matrix b = View(y.data(), Index(samples), Index(outputs)).cast<double>();
  const Eigen::RowVectorXd y_mean = b.colwise().mean();
  LinearMap out{.inputs = inputs};
  Eigen::RowVectorXd bias = y_mean;
  if (inputs > 0) {
    Matrix a = View(x.data(), Index(samples), Index(inputs)).cast<double>();
    const Eigen::RowVectorXd x_mean = a.colwise().mean();
    a.rowwise() -= x_mean;
    b.rowwise() -= y_mean;
    Matrix products = a.transpose() * a;
    products.diagonal().array() += kRidge * products.diagonal().mean() + 1e-12;
    const Matrix map = products.ldlt().solve(a.transpose() * b);
    bias -= x_mean * map;
    const RowMatrix rows = map.cast<float>();
    out.map.assign(rows.data(), rows.data() + rows.size());
  }
  for (const double value : bias) out.bias.push_back(static_cast<float>(value));
  return out;
}

Foretold Foretell(const std::vector<double>& moments, size_t width, size_t inputs) {
  const Eigen::Map<const Matrix> all = View(moments, width);
  const Eigen::Index in = Index(inputs), out = Index(width - inputs);
  const Matrix own = all.topLeftCorner(in, in), across = all.topRightCorner(in, out);
  Matrix ridged = own;
  ridged.diagonal().head(in - 1).array() += kRidge * own.diagonal().head(in - 1).mean();
  ridged.diagonal().array() += kLeastVariance;
  const Matrix map = ridged.ldlt().solve(across);
  const Matrix both = map.transpose() * across;
  Matrix rest = all.bottomRightCorner(out, out);
  rest += map.transpose() * own * map - both - both.transpose();
  const RowMatrix rows = map.cast<float>();
  return {{rows.data(), rows.data() + rows.size()}, Values(rest)};
}

}  // namespace kvstow
