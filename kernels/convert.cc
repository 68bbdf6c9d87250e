// The conversions, once for each SIMD target, chosen at run time.
#include "kernels/convert.h"

#include <cstring>

#include "kernels/half.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/convert.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {

// Loops return how many values they did: whole vectors only.

size_t LoadHalfVectors(const uint16_t* raw, size_t count, float* out, bool& finite) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<uint16_t, decltype(d)> du;
  auto largest = hn::Zero(du);
  size_t i = 0;
  for (const size_t lanes = hn::Lanes(d); i + lanes <= count; i += lanes) {
    const auto bits = hn::LoadU(du, raw + i);
    largest = hn::Max(largest, hn::And(bits, hn::Set(du, 0x7fff)));
    hn::StoreU(FloatsOf(d, bits), d, out + i);
  }
  finite = hn::AllTrue(du, hn::Lt(largest, hn::Set(du, 0x7c00)));
  return i;
}

size_t LoadBf16Vectors(const uint16_t* raw, size_t count, float* out, bool& finite) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du32;
  const hn::Rebind<uint16_t, decltype(d)> du;
  auto largest = hn::Zero(du);
  size_t i = 0;
  for (const size_t lanes = hn::Lanes(d); i + lanes <= count; i += lanes) {
    const auto bits = hn::LoadU(du, raw + i);
    largest = hn::Max(largest, hn::And(bits, hn::Set(du, 0x7fff)));
    const auto wide = hn::ShiftLeft<16>(hn::PromoteTo(du32, bits));
    hn::StoreU(hn::BitCast(d, wide), d, out + i);
  }
  finite = hn::AllTrue(du, hn::Lt(largest, hn::Set(du, 0x7f80)));
  return i;
}

size_t LoadFloatVectors(const float* raw, size_t count, float* out, bool& finite) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  auto largest = hn::Zero(di);
  size_t i = 0;
  for (const size_t lanes = hn::Lanes(d); i + lanes <= count; i += lanes) {
    const auto value = hn::LoadU(d, raw + i);
    largest = hn::Max(largest, hn::BitCast(di, hn::Abs(value)));
    hn::StoreU(value, d, out + i);
  }
  finite = hn::AllTrue(di, hn::Lt(largest, hn::Set(di, 0x7f800000)));
  return i;
}

size_t StoreHalfVectors(const float* values, size_t count, uint16_t* raw) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<uint16_t, decltype(d)> du;
  const auto most = hn::Set(d, kMaxHalf), least = hn::Set(d, -kMaxHalf);
  size_t i = 0;
  for (const size_t lanes = hn::Lanes(d); i + lanes <= count; i += lanes) {
    const auto value = hn::Min(hn::Max(hn::LoadU(d, values + i), least), most);
    hn::StoreU(HalvesOf(d, value), du, raw + i);
  }
  return i;
}

size_t StoreBf16Vectors(const float* values, size_t count, uint16_t* raw) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du32;
  const hn::RebindToSigned<decltype(d)> di32;
  const hn::Rebind<uint16_t, decltype(d)> du;
  const auto most = hn::Set(d, kMaxBf16), least = hn::Set(d, -kMaxBf16);
  size_t i = 0;
  for (const size_t lanes = hn::Lanes(d); i + lanes <= count; i += lanes) {
    const auto value = hn::Min(hn::Max(hn::LoadU(d, values + i), least), most);
    const auto bits = hn::BitCast(du32, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du32, 1));
    const auto rounded = hn::Add(hn::Add(bits, hn::Set(du32, 0x7fff)), odd);
    const auto high = hn::BitCast(di32, hn::ShiftRight<16>(rounded));
    hn::StoreU(hn::DemoteTo(du, high), du, raw + i);
  }
  return i;
}

}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(LoadHalfVectors);
HWY_EXPORT(LoadBf16Vectors);
HWY_EXPORT(LoadFloatVectors);
HWY_EXPORT(StoreHalfVectors);
HWY_EXPORT(StoreBf16Vectors);

bool LoadFloats(DType dtype, const uint8_t* raw, size_t count, float* out) {
  bool finite = true;
  size_t done = 0;
  if (dtype == DType::kF16) {
    done = HWY_DYNAMIC_DISPATCH(LoadHalfVectors)(reinterpret_cast<const uint16_t*>(raw), count, out,
                                                 finite);
  } else if (dtype == DType::kBF16) {
    done = HWY_DYNAMIC_DISPATCH(LoadBf16Vectors)(reinterpret_cast<const uint16_t*>(raw), count, out,
                                                 finite);
  } else {
    done = HWY_DYNAMIC_DISPATCH(LoadFloatVectors)(reinterpret_cast<const float*>(raw), count, out,
                                                  finite);
  }
  return LoadFloatsReference(dtype, raw + done * DTypeBytes(dtype), count - done, out + done) &&
         finite;
}

void StoreFloats(DType dtype, const float* values, size_t count, uint8_t* raw) {
  size_t done = 0;
  if (dtype == DType::kF16) {
    done = HWY_DYNAMIC_DISPATCH(StoreHalfVectors)(values, count, reinterpret_cast<uint16_t*>(raw));
  } else if (dtype == DType::kBF16) {
    done = HWY_DYNAMIC_DISPATCH(StoreBf16Vectors)(values, count, reinterpret_cast<uint16_t*>(raw));
  } else {
    std::memcpy(raw, values, count * sizeof(float));
    return;
  }
  StoreFloatsReference(dtype, values + done, count - done, raw + done * DTypeBytes(dtype));
}

void StoreHalves(const float* values, size_t count, uint8_t* out) {
  StoreFloats(DType::kF16, values, count, out);
}

bool LoadHalves(const uint8_t* halves, size_t count, float* out) {
  return LoadFloats(DType::kF16, halves, count, out);
}

}  // namespace kvstow
#endif  // HWY_ONCE
