// Bit packing, once for each SIMD target, chosen at run time: 4 and 2 bits, which codes use most.
#include "kernels/entropy/bit_pack.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/entropy/bit_pack.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The loops return how many codes they did: whole vectors only. Two codes are one 16-bit lane, four
// are one 32-bit lane.

size_t Pack4(const uint8_t* codes, size_t count, uint8_t* packed) {
  const hn::ScalableTag<uint16_t> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<uint8_t, decltype(d)> du8;
  size_t i = 0;
  for (const size_t lanes = hn::Lanes(d); i + 2 * lanes <= count; i += 2 * lanes) {
    const auto v = hn::LoadU(d, reinterpret_cast<const uint16_t*>(codes + i));
    const auto byte = hn::And(hn::Or(v, hn::ShiftRight<4>(v)), hn::Set(d, 0xff));
    hn::StoreU(hn::DemoteTo(du8, hn::BitCast(di, byte)), du8, packed + i / 2);
  }
  return i;
}

size_t Unpack4(const uint8_t* packed, size_t count, uint8_t* codes) {
  const hn::ScalableTag<uint16_t> d;
  const hn::Rebind<uint8_t, decltype(d)> du8;
  size_t i = 0;
  for (const size_t lanes = hn::Lanes(d); i + 2 * lanes <= count; i += 2 * lanes) {
    const auto v = hn::PromoteTo(d, hn::LoadU(du8, packed + i / 2));
    const auto pair = hn::And(hn::Or(v, hn::ShiftLeft<4>(v)), hn::Set(d, 0x0f0f));
    hn::StoreU(pair, d, reinterpret_cast<uint16_t*>(codes + i));
  }
  return i;
}

size_t Pack2(const uint8_t* codes, size_t count, uint8_t* packed) {
  const hn::ScalableTag<uint32_t> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<uint8_t, decltype(d)> du8;
  size_t i = 0;
  for (const size_t lanes = hn::Lanes(d); i + 4 * lanes <= count; i += 4 * lanes) {
    const auto v = hn::LoadU(d, reinterpret_cast<const uint32_t*>(codes + i));
    const auto pairs = hn::Or(v, hn::ShiftRight<6>(v));
    const auto byte = hn::And(hn::Or(pairs, hn::ShiftRight<12>(pairs)), hn::Set(d, 0xff));
    hn::StoreU(hn::DemoteTo(du8, hn::BitCast(di, byte)), du8, packed + i / 4);
  }
  return i;
}

size_t Unpack2(const uint8_t* packed, size_t count, uint8_t* codes) {
  const hn::ScalableTag<uint32_t> d;
  const hn::Rebind<uint8_t, decltype(d)> du8;
  size_t i = 0;
  for (const size_t lanes = hn::Lanes(d); i + 4 * lanes <= count; i += 4 * lanes) {
    const auto v = hn::PromoteTo(d, hn::LoadU(du8, packed + i / 4));
    const auto pairs = hn::Or(v, hn::ShiftLeft<12>(v));
    const auto four = hn::And(hn::Or(pairs, hn::ShiftLeft<6>(pairs)), hn::Set(d, 0x03030303));
    hn::StoreU(four, d, reinterpret_cast<uint32_t*>(codes + i));
  }
  return i;
}

}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(Pack4);
HWY_EXPORT(Unpack4);
HWY_EXPORT(Pack2);
HWY_EXPORT(Unpack2);

void PackBits(const uint8_t* codes, size_t count, uint32_t bits, uint8_t* packed) {
  if (count == 0) return;
  if (bits == 8) {
    std::memcpy(packed, codes, count);
    return;
  }
  size_t done = 0;
  if (bits == 4) done = HWY_DYNAMIC_DISPATCH(Pack4)(codes, count, packed);
  if (bits == 2) done = HWY_DYNAMIC_DISPATCH(Pack2)(codes, count, packed);
  PackBitsReference(codes + done, count - done, bits, packed + done * bits / 8);
}

void UnpackBits(const uint8_t* packed, size_t count, uint32_t bits, uint8_t* codes) {
  if (count == 0) return;
  if (bits == 8) {
    std::memcpy(codes, packed, count);
    return;
  }
  size_t done = 0;
  if (bits == 4) done = HWY_DYNAMIC_DISPATCH(Unpack4)(packed, count, codes);
  if (bits == 2) done = HWY_DYNAMIC_DISPATCH(Unpack2)(packed, count, codes);
  UnpackBitsReference(packed + done * bits / 8, count - done, bits, codes + done);
}

}  // namespace kvstow
#endif  // HWY_ONCE
