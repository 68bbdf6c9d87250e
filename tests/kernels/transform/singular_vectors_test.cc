#include "kernels/transform/singular_vectors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace kvstow {
namespace {

std::vector<float> Normals(size_t count) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

double Dot(const float* a, const float* b, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += double{a[i]} * b[i];
  return sum;
}

TEST(SingularVectorsTest, EigenvectorsOfAKnownMatrix) {
  // Of 2 on and -1 beside the diagonal: 2 - 2 cos(k pi / (n + 1)).
  constexpr size_t kN = 12;
  std::vector<double> matrix(kN * kN), values;
  for (size_t i = 0; i < kN; ++i) {
    matrix[i * kN + i] = 2;
    if (i + 1 < kN) matrix[i * kN + i + 1] = matrix[(i + 1) * kN + i] = -1;
  }
  const std::vector<double> rows = SymmetricEigenvectors(matrix, kN, values);
  for (size_t k = 0; k < kN; ++k) {
    const double angle = static_cast<double>(kN - k) * std::acos(-1.0) / (kN + 1);
    EXPECT_NEAR(values[k], 2 - 2 * std::cos(angle), 1e-12);
    for (size_t i = 0; i < kN; ++i) {
      double product = 0;
      for (size_t j = 0; j < kN; ++j) product += matrix[i * kN + j] * rows[k * kN + j];
      EXPECT_NEAR(product, values[k] * rows[k * kN + i], 1e-12);
    }
  }
}

TEST(SingularVectorsTest, ATallAndAWideMatrixComeBackFromTheirVectors) {
  for (const auto& [rows, columns] :
       {std::pair{40, 24}, std::pair{24, 40}, std::pair{1, 5}, std::pair{5, 1}}) {
    const size_t r = rows, c = columns, count = std::min(r, c), stride = c + 3;
    const std::vector<float> x = Normals(r * stride);
    const MatrixView m{x.data(), r, c, stride};
    const std::vector<float> vectors = RightSingularVectors(m, count);
    const std::vector<float> a = Project(m, vectors, count);
    double last = 1e30;
    for (size_t k = 0; k < count; ++k) {
      for (size_t j = 0; j <= k; ++j) {
        EXPECT_NEAR(Dot(&vectors[k * c], &vectors[j * c], c), j == k ? 1 : 0, 1e-5);
      }
      double energy = 0;
      for (size_t i = 0; i < r; ++i) energy += double{a[i * count + k]} * a[i * count + k];
      EXPECT_LE(energy, last * (1 + 1e-6));
      last = energy;
    }
    for (size_t i = 0; i < r; ++i) {
      for (size_t j = 0; j < c; ++j) {
        double sum = 0;
        for (size_t k = 0; k < count; ++k) sum += double{a[i * count + k]} * vectors[k * c + j];
        EXPECT_NEAR(sum, x[i * stride + j], 2e-5);
      }
    }
  }
}

TEST(SingularVectorsTest, MatricesOfLowRankHaveNothingBehindIt) {
  for (const float value : {1.5f, 0.0f, 60000.0f, 0x1p-26f}) {
    const std::vector<float> x(40 * 64, value);
    for (const MatrixView m :
         {MatrixView{x.data(), 40, 64, 64}, MatrixView{x.data(), 64, 40, 40}}) {
      const std::vector<float> vectors = RightSingularVectors(m, 3);
      const std::vector<float> a = Project(m, vectors, 3);
      for (size_t i = 0; i < m.rows; ++i) {
        double sum = 0;
        for (size_t k = 0; k < 3; ++k) sum += double{a[i * 3 + k]} * vectors[k * m.columns + 7];
        ASSERT_NEAR(sum, value, 1e-5 * value) << "row " << i;
      }
    }
  }
}

}  // namespace
}  // namespace kvstow
