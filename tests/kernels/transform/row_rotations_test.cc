#include "kernels/transform/row_rotations.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/page/split_mix.h"

namespace kvstow::testing {
namespace {

// A matrix, and the same with each rotation applied at once.
class RowRotationsTest : public ::testing::Test {
 protected:
  void Start(size_t rows, size_t columns) {
    columns_ = columns;
    together_.clear();
    for (uint64_t i = 0; i < rows * columns; ++i)
      together_.push_back(static_cast<double>(SplitMix64(i) >> 40) * 0x1p-23 - 1);
    alone_ = together_;
  }
  void Rotate(RowRotations& rotations, size_t k) {
    const double angle = static_cast<double>(++count_) * 0.7, c = std::cos(angle),
                 s = std::sin(angle);
    rotations.Add(k, c, s);
    double *const upper = &alone_[k * columns_], *const lower = upper + columns_;
    for (size_t j = 0; j < columns_; ++j) {
      const double u = upper[j], l = lower[j];
      upper[j] = c * u + s * l;
      lower[j] = c * l - s * u;
    }
  }
  void ExpectTheSame() const {
    for (size_t i = 0; i < alone_.size(); ++i) ASSERT_NEAR(together_[i], alone_[i], 1e-9) << i;
  }

  size_t columns_ = 0;
  uint64_t count_ = 0;
  std::vector<double> together_, alone_;
};

TEST_F(RowRotationsTest, SweepsAreWhatEachOfTheirRotationsDoes) {
  for (const size_t columns : {1, 7, 32, 33, 100}) {
    Start(9, columns);
    RowRotations rotations(9, columns, together_.data());
    for (const auto& [begin, end] :
         {std::pair<size_t, size_t>{0, 8}, {3, 8}, {0, 8}, {7, 8}, {0, 1}, {1, 2}}) {
      for (size_t k = begin; k < end; ++k) Rotate(rotations, k);
    }
    rotations.Apply();
    ExpectTheSame();
    for (const size_t k : {5, 2, 3, 0}) Rotate(rotations, k);
    rotations.Apply();
    ExpectTheSame();
  }
}

TEST_F(RowRotationsTest, MoreThanAreGatheredKeepTheirOrder) {
  Start(3, 2);
  RowRotations rotations(3, 2, together_.data());
  for (int i = 0; i < (1 << 20) + 5; ++i) Rotate(rotations, i % 2);
  rotations.Apply();
  ExpectTheSame();
}

TEST_F(RowRotationsTest, NoneChangeNothing) {
  Start(4, 5);
  RowRotations rotations(4, 5, together_.data());
  rotations.Apply();
  EXPECT_EQ(together_, alone_);
}

}  // namespace
}  // namespace kvstow::testing
