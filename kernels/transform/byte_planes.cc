// Splitting and merging, once for each SIMD target, chosen at run time.
#include "kernels/transform/byte_planes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "kernels/transform/loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/transform/byte_planes.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

// These return how many values they did: whole vectors only. T is an unsigned integer of the
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

// The planes from value `first` on.
template <typename Byte>
std::array<Byte*, sizeof(float)> From(size_t first, DType dtype, Byte* const* planes) {
  std::array<Byte*, sizeof(float)> out{};
  for (size_t plane = 0; plane < DTypeBytes(dtype); ++plane) out[plane] = planes[plane] + first;
  return out;
}

void Split(DType dtype, const uint8_t* raw, size_t count, uint8_t* const* planes) {
  const auto* const halves = reinterpret_cast<const uint16_t*>(raw);
  size_t done = 0;
  if (dtype == DType::kF32) {
    done = SplitVectors<uint32_t, 1>(reinterpret_cast<const uint32_t*>(raw), count, planes);
  } else if (dtype == DType::kBF16) {
    done = SplitVectors<uint16_t, 1>(halves, count, planes);
  } else if (dtype == DType::kF16) {
    done = SplitVectors<uint16_t, 0>(halves, count, planes);
  }
  BytePlaneLoops::Reference().split(dtype, raw + done * DTypeBytes(dtype), count - done,
                                    From(done, dtype, planes).data());
}

void Merge(DType dtype, const uint8_t* const* planes, size_t count, uint8_t* raw) {
  auto* const halves = reinterpret_cast<uint16_t*>(raw);
  size_t done = 0;
  if (dtype == DType::kF32) {
    done = MergeVectors<uint32_t, 1>(planes, count, reinterpret_cast<uint32_t*>(raw));
  } else if (dtype == DType::kBF16) {
    done = MergeVectors<uint16_t, 1>(planes, count, halves);
  } else if (dtype == DType::kF16) {
    done = MergeVectors<uint16_t, 0>(planes, count, halves);
  }
  BytePlaneLoops::Reference().merge(dtype, From(done, dtype, planes).data(), count - done,
                                    raw + done * DTypeBytes(dtype));
}

const BytePlaneLoops* Loops() {
  static constexpr BytePlaneLoops kLoops{Split, Merge};
  return &kLoops;
}

}  // namespace
}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(Loops);

namespace {

template <typename T>
void SplitScalar(int rotation, const uint8_t* raw, size_t count, uint8_t* const* planes) {
  for (size_t i = 0; i < count; ++i) {
    T bits;
    std::memcpy(&bits, raw + i * sizeof(T), sizeof(T));
    bits = std::rotl(bits, rotation);
    for (size_t plane = 0; plane < sizeof(T); ++plane)
      planes[plane][i] = static_cast<uint8_t>(bits >> 8 * (sizeof(T) - 1 - plane));
  }
}

template <typename T>
void MergeScalar(int rotation, const uint8_t* const* planes, size_t count, uint8_t* raw) {
  for (size_t i = 0; i < count; ++i) {
    T bits = 0;
    for (size_t plane = 0; plane < sizeof(T); ++plane)
      bits = static_cast<T>(bits | static_cast<T>(planes[plane][i]) << 8 * (sizeof(T) - 1 - plane));
    bits = std::rotr(bits, rotation);
    std::memcpy(raw + i * sizeof(T), &bits, sizeof(T));
  }
}

void Split(DType dtype, const uint8_t* raw, size_t count, uint8_t* const* planes) {
  const int rotation = dtype == DType::kF16 ? 0 : 1;
  if (IsFloat8(dtype)) {
    std::copy_n(raw, count, planes[0]);
  } else if (dtype == DType::kF32) {
    SplitScalar<uint32_t>(rotation, raw, count, planes);
  } else {
    SplitScalar<uint16_t>(rotation, raw, count, planes);
  }
}

void Merge(DType dtype, const uint8_t* const* planes, size_t count, uint8_t* raw) {
  const int rotation = dtype == DType::kF16 ? 0 : 1;
  if (IsFloat8(dtype)) {
    std::copy_n(planes[0], count, raw);
  } else if (dtype == DType::kF32) {
    MergeScalar<uint32_t>(rotation, planes, count, raw);
  } else {
    MergeScalar<uint16_t>(rotation, planes, count, raw);
  }
}

}  // namespace

const BytePlaneLoops& BytePlaneLoops::Reference() {
  static constexpr BytePlaneLoops kLoops{Split, Merge};
  return kLoops;
}
const BytePlaneLoops& BytePlaneLoops::Best() { return *HWY_DYNAMIC_DISPATCH(Loops)(); }

void SplitBytes(DType dtype, const uint8_t* raw, size_t count, std::span<uint8_t* const> planes) {
  BytePlaneLoops::Best().split(dtype, raw, count, planes.data());
}

void MergeBytes(DType dtype, std::span<const uint8_t* const> planes, size_t count, uint8_t* raw) {
  BytePlaneLoops::Best().merge(dtype, planes.data(), count, raw);
}

}  // namespace kvstow
#endif  // HWY_ONCE
