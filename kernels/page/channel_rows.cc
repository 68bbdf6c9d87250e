#include "kernels/page/channel_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/page/channel_rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kSums = 8;

RowSums SumRow(const float* row, size_t count) {
  const hn::CappedTag<double, kSums> d;
  const hn::Rebind<float, decltype(d)> df;
  constexpr size_t kLanes = hn::MaxLanes(d), kVectors = kSums / kLanes;
  hn::Vec<decltype(d)> sums[kVectors], squares[kVectors];
  std::fill(sums, sums + kVectors, hn::Zero(d));
  std::fill(squares, squares + kVectors, hn::Zero(d));
  size_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (size_t v = 0; v < kVectors; ++v) {
      const auto x = hn::PromoteTo(d, hn::LoadU(df, row + i + v * kLanes));
      sums[v] = hn::Add(sums[v], x);
      squares[v] = hn::Add(squares[v], hn::Mul(x, x));
    }
  }
  HWY_ALIGN double of_values[kSums], of_squares[kSums];
  for (size_t v = 0; v < kVectors; ++v) {
    hn::Store(sums[v], d, of_values + v * kLanes);
    hn::Store(squares[v], d, of_squares + v * kLanes);
  }
  RowSums out;
  for (size_t lane = 0; lane < kSums; ++lane) {
    out.values += of_values[lane];
    out.squares += of_squares[lane];
  }
  for (; i < count; ++i) {
    const double x = row[i];
    out.values += x;
    out.squares += x * x;
  }
  return out;
}

// Whole vectors; all return how many values that were.

size_t ShiftVectors(float shift, size_t count, float* row) {
  const hn::ScalableTag<float> d;
  const auto by = hn::Set(d, shift);
  size_t i = 0;
  for (const size_t lanes = hn::Lanes(d); i + lanes <= count; i += lanes)
    hn::StoreU(hn::Add(hn::LoadU(d, row + i), by), d, row + i);
  return i;
}

size_t AddVectors(const float* other, size_t count, float* row) {
  const hn::ScalableTag<float> d;
  size_t i = 0;
  for (const size_t lanes = hn::Lanes(d); i + lanes <= count; i += lanes)
    hn::StoreU(hn::Add(hn::LoadU(d, row + i), hn::LoadU(d, other + i)), d, row + i);
  return i;
}

// The bits of magnitudes have their order, and NaN stands above them. As floats, each target would
// lose other NaNs.
size_t LargestOfVectors(const float* values, size_t count, int32_t& largest) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  auto most = hn::Zero(di);
  size_t i = 0;
  for (const size_t lanes = hn::Lanes(d); i + lanes <= count; i += lanes)
    most = hn::Max(most, hn::BitCast(di, hn::Abs(hn::LoadU(d, values + i))));
  largest = hn::GetLane(hn::MaxOfLanes(di, most));
  return i;
}

}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(SumRow);
HWY_EXPORT(ShiftVectors);
HWY_EXPORT(AddVectors);
HWY_EXPORT(LargestOfVectors);

RowSums SumRow(const float* row, size_t count) { return HWY_DYNAMIC_DISPATCH(SumRow)(row, count); }

void ShiftRow(float shift, size_t count, float* row) {
  for (size_t i = HWY_DYNAMIC_DISPATCH(ShiftVectors)(shift, count, row); i < count; ++i)
    row[i] += shift;
}

void AddRow(const float* other, size_t count, float* row) {
  for (size_t i = HWY_DYNAMIC_DISPATCH(AddVectors)(other, count, row); i < count; ++i)
    row[i] += other[i];
}

float LargestMagnitude(const float* values, size_t count) {
  int32_t largest = 0;
  size_t i = HWY_DYNAMIC_DISPATCH(LargestOfVectors)(values, count, largest);
  for (; i < count; ++i) largest = std::max(largest, std::bit_cast<int32_t>(std::abs(values[i])));
  return std::bit_cast<float>(largest);
}

}  // namespace kvstow
#endif  // HWY_ONCE
