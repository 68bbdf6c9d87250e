// Splitting and merging, once for each SIMD target, chosen at run time.
#include "kernels/transform/byte_planes.h"

#include <algorithm>
#include <bit>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/transform/byte_planes.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Loops answer how many values they did: whole vectors only. T is an unsigned integer of the
// value's size.

template <typename T, int rotation>
size_t SplitVectors(const T* raw, size_t count, uint8_t* const* planes) {
  const hn::ScalableTag<T> d;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  constexpr int kBits = 8 * sizeof(T);
  size_t i = 0;
  for (const size_t lanes = hn::Lanes(d); i + lanes <= count; i += lanes) {
    auto bits = hn::LoadU(d, raw + i);
    if constexpr (rotation > 0)
      bits = hn::Or(hn::ShiftLeft<rotation>(bits), hn::ShiftRight<kBits - rotation>(bits));
    for (size_t plane = sizeof(T); plane-- > 0; bits = hn::ShiftRight<8>(bits))
      hn::StoreU(hn::TruncateTo(d8, bits), d8, planes[plane] + i);
  }
  return i;
}

template <typename T, int rotation>
size_t MergeVectors(const uint8_t* const* planes, size_t count, T* raw) {
  const hn::ScalableTag<T> d;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  constexpr int kBits = 8 * sizeof(T);
  size_t i = 0;
  for (const size_t lanes = hn::Lanes(d); i + lanes <= count; i += lanes) {
    auto bits = hn::Zero(d);
    for (size_t plane = 0; plane < sizeof(T); ++plane) {
      const auto byte = hn::PromoteTo(d, hn::LoadU(d8, planes[plane] + i));
      bits = hn::Or(hn::ShiftLeft<8>(bits), byte);
    }
    if constexpr (rotation > 0)
      bits = hn::Or(hn::ShiftRight<rotation>(bits), hn::ShiftLeft<kBits - rotation>(bits));
    hn::StoreU(bits, d, raw + i);
  }
  return i;
}

size_t Split(DType dtype, const uint8_t* raw, size_t count, uint8_t* const* planes) {
  if (dtype == DType::kF32)
    return SplitVectors<uint32_t, 1>(reinterpret_cast<const uint32_t*>(raw), count, planes);
  const auto* const halves = reinterpret_cast<const uint16_t*>(raw);
  return dtype == DType::kBF16 ? SplitVectors<uint16_t, 1>(halves, count, planes)
                               : SplitVectors<uint16_t, 0>(halves, count, planes);
}

size_t Merge(DType dtype, const uint8_t* const* planes, size_t count, uint8_t* raw) {
  if (dtype == DType::kF32)
    return MergeVectors<uint32_t, 1>(planes, count, reinterpret_cast<uint32_t*>(raw));
  auto* const halves = reinterpret_cast<uint16_t*>(raw);
  return dtype == DType::kBF16 ? MergeVectors<uint16_t, 1>(planes, count, halves)
                               : MergeVectors<uint16_t, 0>(planes, count, halves);
}

}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {
namespace {

HWY_EXPORT(Split);
HWY_EXPORT(Merge);

template <typename T>
void SplitScalar(int rotation, const uint8_t* raw, size_t first, size_t count,
                 uint8_t* const* planes) {
  for (size_t i = first; i < count; ++i) {
    T bits;
    std::memcpy(&bits, raw + i * sizeof(T), sizeof(T));
    bits = std::rotl(bits, rotation);
    for (size_t plane = 0; plane < sizeof(T); ++plane)
      planes[plane][i] = static_cast<uint8_t>(bits >> 8 * (sizeof(T) - 1 - plane));
  }
}

template <typename T>
void MergeScalar(int rotation, const uint8_t* const* planes, size_t first, size_t count,
                 uint8_t* raw) {
  for (size_t i = first; i < count; ++i) {
    T bits = 0;
    for (size_t plane = 0; plane < sizeof(T); ++plane)
      bits = static_cast<T>(bits | static_cast<T>(planes[plane][i]) << 8 * (sizeof(T) - 1 - plane));
    bits = std::rotr(bits, rotation);
    std::memcpy(raw + i * sizeof(T), &bits, sizeof(T));
  }
}

// From value `first` on.
void SplitFrom(DType dtype, const uint8_t* raw, size_t first, size_t count,
               uint8_t* const* planes) {
  const int rotation = dtype == DType::kF16 ? 0 : 1;
  if (dtype == DType::kF32) return SplitScalar<uint32_t>(rotation, raw, first, count, planes);
  SplitScalar<uint16_t>(rotation, raw, first, count, planes);
}

void MergeFrom(DType dtype, const uint8_t* const* planes, size_t first, size_t count,
               uint8_t* raw) {
  const int rotation = dtype == DType::kF16 ? 0 : 1;
  if (dtype == DType::kF32) return MergeScalar<uint32_t>(rotation, planes, first, count, raw);
  MergeScalar<uint16_t>(rotation, planes, first, count, raw);
}

}  // namespace

void SplitBytes(DType dtype, const uint8_t* raw, size_t count, std::span<uint8_t* const> planes) {
  if (IsFloat8(dtype)) return SplitBytesReference(dtype, raw, count, planes);
  const size_t done = HWY_DYNAMIC_DISPATCH(Split)(dtype, raw, count, planes.data());
  SplitFrom(dtype, raw, done, count, planes.data());
}

void SplitBytesReference(DType dtype, const uint8_t* raw, size_t count,
                         std::span<uint8_t* const> planes) {
  if (!IsFloat8(dtype)) return SplitFrom(dtype, raw, 0, count, planes.data());
  std::copy_n(raw, count, planes[0]);
}

void MergeBytes(DType dtype, std::span<const uint8_t* const> planes, size_t count, uint8_t* raw) {
  if (IsFloat8(dtype)) return MergeBytesReference(dtype, planes, count, raw);
  const size_t done = HWY_DYNAMIC_DISPATCH(Merge)(dtype, planes.data(), count, raw);
  MergeFrom(dtype, planes.data(), done, count, raw);
}

void MergeBytesReference(DType dtype, std::span<const uint8_t* const> planes, size_t count,
                         uint8_t* raw) {
  if (!IsFloat8(dtype)) return MergeFrom(dtype, planes.data(), 0, count, raw);
  std::copy_n(planes[0], count, raw);
}

}  // namespace kvstow
#endif  // HWY_ONCE
