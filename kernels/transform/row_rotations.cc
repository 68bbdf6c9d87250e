#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/transform/row_rotations.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
// clang-format off
#include "hwy/highway.h"
// clang-format on
#include <algorithm>
#include <span>

#include "kernels/transform/row_rotations.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::ScalableTag<double>;

size_t BlockColumns() { return 4 * hn::Lanes(Tag()); }

// Applies sweeps to rows of BlockColumns() values. The row that two rotations share stays in
// registers.
HWY_ATTR void RotateBlock(std::span<const RowRotations::Sweep> sweeps,
                          const RowRotations::Rotation* rotations, double* block) {
  const Tag d;
  const size_t lanes = hn::Lanes(d);
  for (const RowRotations::Sweep& sweep : sweeps) {
    const RowRotations::Rotation* const of = rotations + sweep.begin;
    double* row = block + sweep.first * 4 * lanes;
    auto a0 = hn::LoadU(d, row), a1 = hn::LoadU(d, row + lanes);
    auto a2 = hn::LoadU(d, row + 2 * lanes), a3 = hn::LoadU(d, row + 3 * lanes);
    for (size_t i = 0; i < sweep.count; ++i, row += 4 * lanes) {
      const auto c = hn::Set(d, of[i].c), s = hn::Set(d, of[i].s);
      const double* const next = row + 4 * lanes;
      const auto b0 = hn::LoadU(d, next), b1 = hn::LoadU(d, next + lanes);
      const auto b2 = hn::LoadU(d, next + 2 * lanes), b3 = hn::LoadU(d, next + 3 * lanes);
      hn::StoreU(hn::MulAdd(c, a0, hn::Mul(s, b0)), d, row);
      hn::StoreU(hn::MulAdd(c, a1, hn::Mul(s, b1)), d, row + lanes);
      hn::StoreU(hn::MulAdd(c, a2, hn::Mul(s, b2)), d, row + 2 * lanes);
      hn::StoreU(hn::MulAdd(c, a3, hn::Mul(s, b3)), d, row + 3 * lanes);
      a0 = hn::NegMulAdd(s, a0, hn::Mul(c, b0)), a1 = hn::NegMulAdd(s, a1, hn::Mul(c, b1));
      a2 = hn::NegMulAdd(s, a2, hn::Mul(c, b2)), a3 = hn::NegMulAdd(s, a3, hn::Mul(c, b3));
    }
    hn::StoreU(a0, d, row), hn::StoreU(a1, d, row + lanes);
    hn::StoreU(a2, d, row + 2 * lanes), hn::StoreU(a3, d, row + 3 * lanes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvstow
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(BlockColumns);
HWY_EXPORT(RotateBlock);

void RowRotations::Apply() {
  const size_t width = HWY_DYNAMIC_DISPATCH(BlockColumns)();
  block_.resize(rows_ * width);
  for (size_t first = 0; first < columns_; first += width) {
    const size_t count = std::min(width, columns_ - first);
    for (size_t i = 0; i < rows_; ++i)
      std::copy_n(matrix_ + i * columns_ + first, count, block_.data() + i * width);
    HWY_DYNAMIC_DISPATCH(RotateBlock)(sweeps_, rotations_.data(), block_.data());
    for (size_t i = 0; i < rows_; ++i)
      std::copy_n(block_.data() + i * width, count, matrix_ + i * columns_ + first);
  }
  rotations_.clear();
  sweeps_.clear();
}

}  // namespace kvstow
#endif  // HWY_ONCE
