#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/transform/dense_product.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
// clang-format off
#include "hwy/highway.h"
// clang-format on
#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/transform/dense_product.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::CappedTag<float, PackedMatrix::kPanel / 4>;
constexpr size_t kTileRows = 6;     // rows of x
constexpr size_t kInner = 256;      // of the matrix: what of a tile stays in the nearest cache
constexpr size_t kChunkRows = 192;  // of x: bounds the sums that are kept meanwhile

// Adds `inner` products to the sums [6, two vectors] at `sums`. Rows beyond `rows` repeat the first
// and are not stored.
HWY_ATTR void MultiplyTile(const float* x, size_t stride, size_t rows, size_t inner,
                           const float* panel, float* sums) {
  const Tag d;
  const size_t lanes = hn::Lanes(d);
  const float* x0 = x;
  const float* x1 = rows > 1 ? x + stride : x;
  const float* x2 = rows > 2 ? x + 2 * stride : x;
  const float* x3 = rows > 3 ? x + 3 * stride : x;
  const float* x4 = rows > 4 ? x + 4 * stride : x;
  const float* x5 = rows > 5 ? x + 5 * stride : x;
  const auto load = [&](size_t i) HWY_ATTR { return hn::LoadU(d, sums + i * lanes); };
  auto a0 = load(0), b0 = load(1), a1 = load(2), b1 = load(3), a2 = load(4), b2 = load(5);
  auto a3 = load(6), b3 = load(7), a4 = load(8), b4 = load(9), a5 = load(10), b5 = load(11);
  for (size_t i = 0; i < inner; ++i, panel += PackedMatrix::kPanel) {
    const auto a = hn::LoadU(d, panel);
    const auto b = hn::LoadU(d, panel + lanes);
    auto v = hn::Set(d, x0[i]);
    a0 = hn::MulAdd(v, a, a0), b0 = hn::MulAdd(v, b, b0);
    v = hn::Set(d, x1[i]);
    a1 = hn::MulAdd(v, a, a1), b1 = hn::MulAdd(v, b, b1);
    v = hn::Set(d, x2[i]);
    a2 = hn::MulAdd(v, a, a2), b2 = hn::MulAdd(v, b, b2);
    v = hn::Set(d, x3[i]);
    a3 = hn::MulAdd(v, a, a3), b3 = hn::MulAdd(v, b, b3);
    v = hn::Set(d, x4[i]);
    a4 = hn::MulAdd(v, a, a4), b4 = hn::MulAdd(v, b, b4);
    v = hn::Set(d, x5[i]);
    a5 = hn::MulAdd(v, a, a5), b5 = hn::MulAdd(v, b, b5);
  }
  const auto store = [&](size_t row, auto a, auto b) HWY_ATTR {
    if (row >= rows) return;
    hn::StoreU(a, d, sums + row * 2 * lanes);
    hn::StoreU(b, d, sums + row * 2 * lanes + lanes);
  };
  store(0, a0, b0), store(1, a1, b1), store(2, a2, b2);
  store(3, a3, b3), store(4, a4, b4), store(5, a5, b5);
}

const float* TileAt(const PackedMatrix& m, size_t column, size_t row) {
  return m.PanelRow(column / PackedMatrix::kPanel, row) + column % PackedMatrix::kPanel;
}

// Copies what of a tile of sums [first, first + tile) the caller wants.
void StoreWanted(const float* sums, size_t first, size_t tile, Columns columns, float* y) {
  const size_t from = std::max(first, columns.first);
  const size_t to = std::min(first + tile, columns.first + columns.count);
  std::memcpy(y + (from - columns.first), sums + (from - first), (to - from) * sizeof(float));
}

HWY_ATTR void MultiplyChunk(const float* x, size_t count, const PackedMatrix& m, Columns columns,
                            float* y, size_t stride) {
  const size_t tile = 2 * hn::Lanes(Tag());
  std::array<float, (kChunkRows + kTileRows) * PackedMatrix::kPanel / 2> sums;
  for (size_t first = columns.first / tile * tile; first < columns.first + columns.count;
       first += tile) {
    sums.fill(0);
    for (size_t i = 0; i < m.rows(); i += kInner) {
      for (size_t t = 0; t < count; t += kTileRows) {
        MultiplyTile(x + t * m.rows() + i, m.rows(), std::min(kTileRows, count - t),
                     std::min(kInner, m.rows() - i), TileAt(m, first, i), sums.data() + t * tile);
      }
    }
    for (size_t t = 0; t < count; ++t) {
      StoreWanted(sums.data() + t * tile, first, tile, columns, y + t * stride);
    }
  }
}

HWY_ATTR void MultiplyRows(const float* x, size_t count, const PackedMatrix& m, Columns columns,
                           float* y, size_t stride) {
  for (size_t t = 0; t < count; t += kChunkRows) {
    MultiplyChunk(x + t * m.rows(), std::min(kChunkRows, count - t), m, columns, y + t * stride,
                  stride);
  }
}

HWY_ATTR void MultiplyNonZeroRows(const NonZeroRows& x, const PackedMatrix& m, Columns columns,
                                  float* y, size_t stride) {
  const Tag d;
  // Enough sums that no product waits for the last, and no more than there are registers for.
  constexpr size_t kSums = std::min<size_t>(PackedMatrix::kPanel / hn::MaxLanes(Tag()), 8);
  const size_t lanes = hn::Lanes(d), tile = kSums * lanes;
  std::array<float, PackedMatrix::kPanel> sums;
  // All rows against one tile of columns before the next, so that the tile stays in cache.
  for (size_t first = columns.first / tile * tile; first < columns.first + columns.count;
       first += tile) {
    const float* panel = TileAt(m, first, 0);
    size_t i = 0;
    for (size_t t = 0; t < x.count(); ++t) {
      hn::Vec<Tag> s[kSums];
      for (auto& sum : s) sum = hn::Zero(d);
      for (; i < x.ends[t]; ++i) {
        const float* row = panel + x.indices[i] * PackedMatrix::kPanel;
        const auto v = hn::Set(d, x.values[i]);
        for (size_t k = 0; k < kSums; ++k)
          s[k] = hn::MulAdd(v, hn::LoadU(d, row + k * lanes), s[k]);
      }
      for (size_t k = 0; k < kSums; ++k) hn::StoreU(s[k], d, sums.data() + k * lanes);
      StoreWanted(sums.data(), first, tile, columns, y + t * stride);
    }
  }
}

// Stores the lanes of `values` that are not 0, and their indices from `first` on; writes whole
// vectors. Returns how many.
template <class DF>
HWY_INLINE size_t StoreNonZeros(DF d, hn::Vec<DF> values, size_t first, uint32_t* indices,
                                float* to) {
  const hn::RebindToUnsigned<DF> du;
  const auto kept = hn::Ne(values, hn::Zero(d));
#if HWY_TARGET == HWY_AVX2  // whose Compress copies its table to the stack each time
  struct Lanes {
    constexpr Lanes() {
      for (size_t bits = 0; bits < 256; ++bits) {
        for (uint8_t lane = 0, n = 0; lane < 8; ++lane) {
          if ((bits >> lane & 1) != 0) of[bits][n++] = lane;
        }
      }
    }
    alignas(8) uint8_t of[256][8] = {};
  };
  static constexpr Lanes kLanes;
  uint8_t bits[8] = {};
  hn::StoreMaskBits(d, kept, bits);
  const hn::Rebind<uint8_t, DF> d8;
  const auto lanes = hn::PromoteTo(du, hn::LoadU(d8, kLanes.of[bits[0]]));
  hn::StoreU(hn::TableLookupLanes(values, hn::IndicesFromVec(d, lanes)), d, to);
  hn::StoreU(hn::Add(lanes, hn::Set(du, static_cast<uint32_t>(first))), du, indices);
#else
  const auto index = hn::Iota(du, static_cast<uint32_t>(first));
  hn::StoreU(hn::Compress(values, kept), d, to);
  hn::StoreU(hn::Compress(index, hn::RebindMask(du, kept)), du, indices);
#endif
  return hn::CountTrue(d, kept);
}

// Appends those of a row to lists that have room for all, and a vector more; returns how many.
HWY_ATTR size_t AppendNonZeros(const float* row, size_t width, uint32_t* indices, float* values) {
  const hn::CappedTag<float, 16> d;
  const size_t lanes = hn::Lanes(d);
  size_t n = 0, i = 0;
  for (; i + lanes <= width; i += lanes)
    n += StoreNonZeros(d, hn::LoadU(d, row + i), i, indices + n, values + n);
  for (; i < width; ++i) {
    if (row[i] == 0) continue;
    values[n] = row[i];
    indices[n++] = static_cast<uint32_t>(i);
  }
  return n;
}

}  // namespace HWY_NAMESPACE
}  // namespace kvstow
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(MultiplyRows);
HWY_EXPORT(MultiplyNonZeroRows);
HWY_EXPORT(AppendNonZeros);

PackedMatrix::PackedMatrix(size_t rows, size_t columns)
    : rows_(rows), columns_(columns), values_((columns + kPanel - 1) / kPanel * kPanel * rows) {}

void PackedMatrix::SetRow(size_t row, std::span<const float> values) {
  for (size_t first = 0; first < columns_; first += kPanel) {
    const size_t n = std::min(kPanel, columns_ - first);
    std::memcpy(values_.data() + (first / kPanel * rows_ + row) * kPanel, values.data() + first,
                n * sizeof(float));
  }
}

void PackedMatrix::SetColumn(size_t column, std::span<const float> values) {
  float* at = values_.data() + column / kPanel * kPanel * rows_ + column % kPanel;
  for (size_t i = 0; i < rows_; ++i) at[i * kPanel] = values[i];
}

void MultiplyRows(const float* x, size_t count, const PackedMatrix& m, Columns columns, float* y,
                  size_t stride) {
  HWY_DYNAMIC_DISPATCH(MultiplyRows)(x, count, m, columns, y, stride);
}

NonZeroRows ListNonZeros(const float* x, size_t count, size_t width) {
  constexpr size_t kRoom = 16;
  NonZeroRows out;
  size_t n = 0;
  for (size_t t = 0; t < count; ++t) {
    if (out.values.size() < n + width + kRoom) {
      out.values.resize(2 * n + width + kRoom);
      out.indices.resize(out.values.size());
    }
    n += HWY_DYNAMIC_DISPATCH(AppendNonZeros)(x + t * width, width, out.indices.data() + n,
                                              out.values.data() + n);
    out.ends.push_back(static_cast<uint32_t>(n));
  }
  out.values.resize(n);
  out.indices.resize(n);
  return out;
}

void MultiplyNonZeroRows(const NonZeroRows& x, const PackedMatrix& m, Columns columns, float* y,
                         size_t stride) {
  HWY_DYNAMIC_DISPATCH(MultiplyNonZeroRows)(x, m, columns, y, stride);
}

}  // namespace kvstow
#endif  // HWY_ONCE
