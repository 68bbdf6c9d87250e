#include "kernels/calibration_basis.h"

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>

namespace kvstow {
namespace {

using Matrix = Eigen::MatrixXd;

constexpr double kEigenvalueFloor = 1e-3;

Eigen::Index Index(size_t n) { return static_cast<Eigen::Index>(n); }

Eigen::Map<const Matrix> View(const std::vector<double>& values, size_t size) {
  return {values.data(), Index(size), Index(size)};
}

std::vector<double> Values(const Matrix& m) { return {m.data(), m.data() + m.size()}; }

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
  const Matrix identity = Matrix::Identity(Index(size), Index(size));
  return {column, size, Values(identity * scale), Values(identity / scale)};
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
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(m);
  return {width, Rows(solver.eigenvectors(), blocks, &WhiteningBlock::forward),
          Rows(solver.eigenvectors(), blocks, &WhiteningBlock::inverse)};
}

std::vector<double> SolveSymmetric(const std::vector<double>& a, const std::vector<double>& b) {
  const Eigen::Map<const Eigen::VectorXd> right(b.data(), Index(b.size()));
  const Eigen::VectorXd x = View(a, b.size()).ldlt().solve(right);
  return {x.data(), x.data() + x.size()};
}

}  // namespace kvstow
