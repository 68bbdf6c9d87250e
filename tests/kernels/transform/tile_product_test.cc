#include "kernels/transform/tile_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <thread>
#include <vector>

#include "kernels/page/half.h"

namespace kvstow {
namespace {

struct Product {
  Product(size_t count, size_t rows, size_t columns)
      : count(count),
        rows(rows),
        columns(columns),
        x(count * rows),
        values(rows * columns),
        m(rows, columns) {
    std::mt19937 random(static_cast<unsigned>(count + rows + columns));
    std::normal_distribution<float> normal;
    for (float& v : x) v = normal(random);
    for (float& v : values) v = normal(random);
    for (size_t i = 0; i < rows; ++i) m.SetRow(i, std::span(values).subspan(i * columns, columns));
  }
  std::vector<float> Multiply(size_t stride) const {
    std::vector<float> y(count * stride, -7);
    MultiplyRowsInTiles(x.data(), count, rows, m, {0, columns}, y.data(), stride);
    return y;
  }

  size_t count, rows, columns;
  std::vector<float> x, values;
  PackedMatrix m;
};

class TileProductShapes : public ::testing::TestWithParam<std::tuple<size_t, size_t, size_t>> {};

// Products of bf16 values are exact in F32: only the additions round.
TEST_P(TileProductShapes, EqualTheDefinition) {
  const auto [count, rows, columns] = GetParam();
  const Product p(count, rows, columns);
  const auto rounded = [&](float v) { return HasTiles() ? Bf16ToFloat(FloatToBf16(v)) : v; };
  const std::vector<float> y = p.Multiply(columns + 3);
  for (size_t t = 0; t < count; ++t) {
    for (size_t j = 0; j < columns; ++j) {
      double sum = 0, sizes = 0;
      for (size_t i = 0; i < rows; ++i) {
        const double term = double{rounded(p.x[t * rows + i])} * rounded(p.values[i * columns + j]);
        sum += term;
        sizes += std::abs(term);
      }
      ASSERT_NEAR(y[t * (columns + 3) + j], sum, 1e-6 * sizes) << "row " << t << " column " << j;
    }
    for (size_t j = columns; j < columns + 3; ++j) ASSERT_EQ(y[t * (columns + 3) + j], -7);
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, TileProductShapes,
                         ::testing::Values(std::tuple(1, 1, 1), std::tuple(31, 33, 40),
                                           std::tuple(32, 1, 1), std::tuple(33, 31, 17),
                                           std::tuple(64, 64, 64), std::tuple(50, 513, 65),
                                           std::tuple(257, 100, 130), std::tuple(300, 1100, 33)));

// A reader of few tokens and layers gets what a reader of all gets.
TEST(TileProductTest, ARowHasTheSameResultWithOthersAndAlone) {
  const Product p(300, 600, 200);
  const std::vector<float> all = p.Multiply(200);
  for (const auto& [first, count] : {std::pair<size_t, size_t>{0, 1}, {5, 40}, {299, 1}}) {
    for (const Columns columns : {Columns{0, 200}, Columns{33, 50}, Columns{199, 1}}) {
      std::vector<float> y(count * columns.count);
      MultiplyRowsInTiles(p.x.data() + first * p.rows, count, p.rows, p.m, columns, y.data(),
                          columns.count);
      for (size_t t = 0; t < count; ++t) {
        for (size_t j = 0; j < columns.count; ++j) {
          ASSERT_EQ(y[t * columns.count + j], all[(first + t) * 200 + columns.first + j])
              << first + t << " " << columns.first + j;
        }
      }
    }
  }
}

TEST(TileProductTest, ThreadsAtOnceGetTheSame) {
  const Product p(70, 90, 50);
  const std::vector<float> want = p.Multiply(50);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 20; ++n) EXPECT_EQ(p.Multiply(50), want);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace kvstow
