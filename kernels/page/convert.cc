// The conversions, once for each SIMD target, chosen at run time.
#include "kernels/page/convert.h"

#include <algorithm>
#include <cstring>

#include "hwy/cache_control.h"
#include "kernels/page/half.h"
#include "kernels/page/loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/page/convert.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/page/values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace {

// These return how many values they did: whole vectors only.

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

size_t LoadF32Vectors(const float* raw, size_t count, float* out, bool& finite) {
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

bool Load(DType dtype, const uint8_t* raw, size_t count, float* out) {
  const auto* const halves = reinterpret_cast<const uint16_t*>(raw);
  bool finite = true;
  const size_t done = dtype == DType::kF16 ? LoadVectors<F16Values>(halves, count, out, finite)
                      : dtype == DType::kBF16
                          ? LoadVectors<Bf16Values>(halves, count, out, finite)
                          : LoadF32Vectors(reinterpret_cast<const float*>(raw), count, out, finite);
  return ConvertLoops::Reference().load(dtype, raw + done * DTypeBytes(dtype), count - done,
                                        out + done) &&
         finite;
}

void Store(DType dtype, const float* values, size_t count, uint8_t* raw) {
  if (dtype == DType::kF32) {
    std::memcpy(raw, values, count * sizeof(float));
    return;
  }
  auto* const halves = reinterpret_cast<uint16_t*>(raw);
  const size_t done = dtype == DType::kF16 ? StoreVectors<F16Values>(values, count, halves)
                                           : StoreVectors<Bf16Values>(values, count, halves);
  ConvertLoops::Reference().store(dtype, values + done, count - done,
                                  raw + done * DTypeBytes(dtype));
}

// Writes past the caches, but for the parts of 64-byte lines at both ends.
void Stream(const uint8_t* from, size_t count, uint8_t* to) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d), over = reinterpret_cast<uintptr_t>(to) % lanes;
  size_t i = std::min(count, over == 0 ? 0 : lanes - over);
  std::memcpy(to, from, i);
  for (; i + lanes <= count; i += lanes) hn::Stream(hn::LoadU(d, from + i), d, to + i);
  std::memcpy(to + i, from + i, count - i);
}

const ConvertLoops* Loops() {
  static constexpr ConvertLoops kLoops{Load, Store, Stream};
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
T Read(const uint8_t* from, size_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void Write(uint8_t* to, size_t index, T value) {
  std::memcpy(to + index * sizeof(T), &value, sizeof(T));
}

bool Load(DType dtype, const uint8_t* raw, size_t count, float* out) {
  bool finite = true;
  for (size_t i = 0; i < count; ++i) {
    switch (dtype) {
      case DType::kF16:
        out[i] = HalfToFloat(Read<uint16_t>(raw, i));
        break;
      case DType::kBF16:
        out[i] = Bf16ToFloat(Read<uint16_t>(raw, i));
        break;
      default:
        out[i] = Read<float>(raw, i);
    }
    finite &= (std::bit_cast<uint32_t>(out[i]) & 0x7f800000) != 0x7f800000;
  }
  return finite;
}

void Store(DType dtype, const float* values, size_t count, uint8_t* raw) {
  for (size_t i = 0; i < count; ++i) {
    const float x = values[i];
    switch (dtype) {
      case DType::kF16:
        Write(raw, i, FloatToHalf(std::clamp(x, -kMaxHalf, kMaxHalf)));
        break;
      case DType::kBF16:
        Write(raw, i, FloatToBf16(std::clamp(x, -kMaxBf16, kMaxBf16)));
        break;
      default:
        Write(raw, i, x);
    }
  }
}

// Copies bytes as they are: what `stream` leaves behind.
void Copy(const uint8_t* from, size_t count, uint8_t* to) { std::copy_n(from, count, to); }

}  // namespace

const ConvertLoops& ConvertLoops::Reference() {
  static constexpr ConvertLoops kLoops{Load, Store, Copy};
  return kLoops;
}
const ConvertLoops& ConvertLoops::Best() { return *HWY_DYNAMIC_DISPATCH(Loops)(); }

bool LoadFloats(DType dtype, const uint8_t* raw, size_t count, float* out) {
  return ConvertLoops::Best().load(dtype, raw, count, out);
}

void StoreFloats(DType dtype, const float* values, size_t count, uint8_t* raw) {
  ConvertLoops::Best().store(dtype, values, count, raw);
}

void StreamBytes(const uint8_t* from, size_t count, uint8_t* to) {
  ConvertLoops::Best().stream(from, count, to);
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
