// The conversions, once for each SIMD target, chosen at run time.
#include "kernels/page/convert.h"

#include <algorithm>
#include <cstring>

#include "hwy/cache_control.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/page/convert.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/page/values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {

// Loops return how many values they did: whole vectors only.

template <class Values>
size_t LoadVectors(const uint16_t* raw, size_t count, float* out, bool& finite) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<uint16_t, decltype(d)> du;
  auto largest = hn::Zero(du);
  size_t i = 0;
  for (const size_t lanes = hn::Lanes(d); i + lanes <= count; i += lanes) {
    hwy::Prefetch(raw + i + kAhead / sizeof(*raw));
    largest = hn::Max(largest, hn::And(hn::LoadU(du, raw + i), hn::Set(du, 0x7fff)));
    hn::StoreU(Values::Load(d, raw + i), d, out + i);
  }
  finite = hn::AllTrue(du, hn::Lt(largest, hn::Set(du, Values::kInf)));
  return i;
}

size_t LoadHalfVectors(const uint16_t* raw, size_t count, float* out, bool& finite) {
  return LoadVectors<F16Values>(raw, count, out, finite);
}

size_t LoadBf16Vectors(const uint16_t* raw, size_t count, float* out, bool& finite) {
  return LoadVectors<Bf16Values>(raw, count, out, finite);
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

template <class Values>
size_t StoreVectors(const float* values, size_t count, uint16_t* raw) {
  const hn::ScalableTag<float> d;
  size_t i = 0;
  for (const size_t lanes = hn::Lanes(d); i + lanes <= count; i += lanes) {
    Values::Store(d, hn::LoadU(d, values + i), raw + i);
  }
  return i;
}

size_t StoreHalfVectors(const float* values, size_t count, uint16_t* raw) {
  return StoreVectors<F16Values>(values, count, raw);
}

size_t StoreBf16Vectors(const float* values, size_t count, uint16_t* raw) {
  return StoreVectors<Bf16Values>(values, count, raw);
}

// Writes past the caches. What is left over at both ends of 64-byte lines is written as usual.
void StreamVectors(const uint8_t* from, size_t count, uint8_t* to) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d), over = reinterpret_cast<uintptr_t>(to) % lanes;
  size_t i = std::min(count, over == 0 ? 0 : lanes - over);
  std::memcpy(to, from, i);
  for (; i + lanes <= count; i += lanes) hn::Stream(hn::LoadU(d, from + i), d, to + i);
  std::memcpy(to + i, from + i, count - i);
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
HWY_EXPORT(StreamVectors);

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

void StreamBytes(const uint8_t* from, size_t count, uint8_t* to) {
  HWY_DYNAMIC_DISPATCH(StreamVectors)(from, count, to);
}

void FinishStreams() { hwy::FlushStream(); }

void StoreHalves(const float* values, size_t count, uint8_t* out) {
  StoreFloats(DType::kF16, values, count, out);
}

bool LoadHalves(const uint8_t* halves, size_t count, float* out) {
  return LoadFloats(DType::kF16, halves, count, out);
}

}  // namespace kvstow
#endif  // HWY_ONCE
