#include "kernels/transform/dense_product.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <random>

namespace kvstow {
namespace {

std::vector<float> RandomValues(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& x : out) x = normal(random);
  return out;
}

struct Shape {
  size_t count, rows, columns;
};

class DenseProductShapes : public ::testing::TestWithParam<Shape> {
 protected:
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

double Expected(const std::vector<float>& x, const std::vector<float>& m, const Shape& s, size_t t,
                size_t j) {
  double sum = 0;
  for (size_t i = 0; i < s.rows; ++i) sum += double{x[t * s.rows + i]} * m[i * s.columns + j];
  return sum;
}

TEST_P(DenseProductShapes, EqualTheDefinitionOnEveryTarget) {
  const Shape s = GetParam();
  const std::vector<float> x = RandomValues(s.count * s.rows, 1);
  const std::vector<float> values = RandomValues(s.rows * s.columns, 2);
  PackedMatrix m(s.rows, s.columns);
  for (size_t i = 0; i < s.rows; ++i)
    m.SetRow(i, std::span(values).subspan(i * s.columns, s.columns));
  for (int64_t targets = hwy::SupportedTargets(); targets != 0; targets &= targets - 1) {
    hwy::SetSupportedTargetsForTest(targets & -targets);
    for (const Columns& columns :
         {Columns{0, s.columns}, Columns{s.columns / 3, s.columns - s.columns / 3}}) {
      std::vector<float> y(s.count * columns.count, -1);
      MultiplyRows(x.data(), s.count, m, columns, y.data(), columns.count);
      std::vector<float> all(s.count * columns.count, -1);
      NonZeroRows sparse{.values = x};
      for (size_t t = 0; t < s.count; ++t) {
        for (uint32_t i = 0; i < s.rows; ++i) sparse.indices.push_back(i);
        sparse.ends.push_back(sparse.indices.size());
      }
      MultiplyNonZeroRows(sparse, m, columns, all.data(), columns.count);
      for (size_t t = 0; t < s.count; ++t) {
        for (size_t j = 0; j < columns.count; ++j) {
          ASSERT_NEAR(y[t * columns.count + j], Expected(x, values, s, t, columns.first + j), 1e-4)
              << hwy::TargetName(targets & -targets) << " row " << t << " column " << j;
        }
      }
      EXPECT_EQ(all, y) << hwy::TargetName(targets & -targets);
    }
    hwy::SetSupportedTargetsForTest(0);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, DenseProductShapes,
                         ::testing::Values(Shape{1, 1, 1}, Shape{7, 5, 3}, Shape{6, 64, 64},
                                           Shape{13, 100, 130}, Shape{5, 33, 200},
                                           Shape{400, 600, 65}));

TEST(DenseProductTest, ZerosOfASparseRowMayBeLeftOut) {
  const std::vector<float> values = RandomValues(50 * 70, 2);
  PackedMatrix m(50, 70);
  for (size_t i = 0; i < 50; ++i) m.SetRow(i, std::span(values).subspan(i * 70, 70));
  std::vector<float> x(50);
  x[3] = 2, x[49] = -1;
  std::vector<float> dense(70), sparse(70);
  MultiplyRows(x.data(), 1, m, {0, 70}, dense.data(), 70);
  MultiplyNonZeroRows({{2}, {3, 49}, {2, -1}}, m, {0, 70}, sparse.data(), 70);
  EXPECT_EQ(sparse, dense);
  MultiplyNonZeroRows({{0}, {}, {}}, m, {0, 70}, sparse.data(), 70);
  EXPECT_THAT(sparse, ::testing::Each(0));
}

}  // namespace
}  // namespace kvstow
