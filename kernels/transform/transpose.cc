#include "kernels/transform/transpose.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/transform/transpose.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A tile has this many rows and 4 columns.
constexpr size_t kTileRows = HWY_MAX_BYTES < 32 ? 4 : 8;
constexpr size_t kTileColumns = 4;

#if HWY_TARGET == HWY_SCALAR  // has no vectors to interleave
HWY_INLINE void TransposeTile(const float* from, size_t from_stride, float* to, size_t to_stride) {
  for (size_t i = 0; i < kTileRows; ++i) {
    for (size_t j = 0; j < kTileColumns; ++j) to[j * to_stride + i] = from[i * from_stride + j];
  }
}
#else
using Rows = hn::FixedTag<float, kTileRows>;

// Four values of a row; behind them, where vectors hold two rows, four of the fourth row after it.
// A template, as only templates leave out the branch that does not fit the vectors.
template <class D>
HWY_INLINE hn::Vec<D> LoadRow(D d, const float* from, size_t from_stride) {
  if constexpr (hn::MaxLanes(d) == 4) {
    return hn::LoadU(d, from);
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, hn::LoadU(half, from + 4 * from_stride), hn::LoadU(half, from));
  }
}

HWY_INLINE void TransposeTile(const float* from, size_t from_stride, float* to, size_t to_stride) {
  const Rows d;
  const auto a = LoadRow(d, from, from_stride), b = LoadRow(d, from + from_stride, from_stride);
  const auto c = LoadRow(d, from + 2 * from_stride, from_stride);
  const auto e = LoadRow(d, from + 3 * from_stride, from_stride);
  const auto ac0 = hn::InterleaveLower(d, a, c), ac1 = hn::InterleaveUpper(d, a, c);
  const auto be0 = hn::InterleaveLower(d, b, e), be1 = hn::InterleaveUpper(d, b, e);
  hn::StoreU(hn::InterleaveLower(d, ac0, be0), d, to);
  hn::StoreU(hn::InterleaveUpper(d, ac0, be0), d, to + to_stride);
  hn::StoreU(hn::InterleaveLower(d, ac1, be1), d, to + 2 * to_stride);
  hn::StoreU(hn::InterleaveUpper(d, ac1, be1), d, to + 3 * to_stride);
}
#endif

void Transpose(const float* from, size_t rows, size_t columns, size_t from_stride, float* to,
               size_t to_stride) {
  const size_t whole_rows = rows / kTileRows * kTileRows;
  const size_t whole_columns = columns / kTileColumns * kTileColumns;
  for (size_t j = 0; j < whole_columns; j += kTileColumns) {
    for (size_t i = 0; i < whole_rows; i += kTileRows)
      TransposeTile(from + i * from_stride + j, from_stride, to + j * to_stride + i, to_stride);
  }
  for (size_t j = 0; j < columns; ++j) {
    for (size_t i = j < whole_columns ? whole_rows : 0; i < rows; ++i)
      to[j * to_stride + i] = from[i * from_stride + j];
  }
}

}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(Transpose);

void Transpose(const float* from, size_t rows, size_t columns, size_t from_stride, float* to,
               size_t to_stride) {
  HWY_DYNAMIC_DISPATCH(Transpose)(from, rows, columns, from_stride, to, to_stride);
}

}  // namespace kvstow
#endif  // HWY_ONCE
