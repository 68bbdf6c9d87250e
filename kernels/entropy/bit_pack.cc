// Bit packing: 4 and 2 bits, which codes use most, once for each SIMD target, chosen at run time;
// other numbers of bits eight codes at a time, in words.
#include "kernels/entropy/bit_pack.h"

#include <cstring>

#include "kernels/entropy/loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/entropy/bit_pack.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

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

// Lanes of 16, 32 and 64 bits of a word: the lower half's share of one, and how far the upper
// half's is from where it belongs.
struct Step {
  uint64_t low, high;
  uint32_t gap;
};
struct Steps {
  explicit Steps(uint32_t bits)
      : pairs(Of(0x0001000100010001, 8, bits)),
        fours(Of(0x0000000100000001, 16, 2 * bits)),
        eights(Of(1, 32, 4 * bits)) {}
  static Step Of(uint64_t lanes, uint32_t half, uint32_t used) {
    const uint64_t low = lanes * ((uint64_t{1} << used) - 1);
    return {low, low << half, half - used};
  }
  const Step pairs, fours, eights;
};

uint64_t Close(uint64_t v, const Step& s) { return (v & s.low) | (v & s.high) >> s.gap; }
uint64_t Open(uint64_t v, const Step& s) { return (v & s.low) | (v << s.gap & s.high); }

// These move whole words, as long as such a word is within what is packed: what is written of it
// too much is written again by what follows.
size_t PackWords(const uint8_t* codes, size_t count, uint32_t bits, uint8_t* packed) {
  const Steps steps(bits);
  size_t i = 0;
  for (; (count - i) * bits >= 64; i += 8, packed += bits) {
    uint64_t v;
    std::memcpy(&v, codes + i, sizeof(v));
    v = Close(Close(Close(v, steps.pairs), steps.fours), steps.eights);
    std::memcpy(packed, &v, sizeof(v));
  }
  return i;
}

size_t UnpackWords(const uint8_t* packed, size_t count, uint32_t bits, uint8_t* codes) {
  const Steps steps(bits);
  size_t i = 0;
  for (; (count - i) * bits >= 64; i += 8, packed += bits) {
    uint64_t v;
    std::memcpy(&v, packed, sizeof(v));
    v = Open(Open(Open(v, steps.eights), steps.fours), steps.pairs);
    std::memcpy(codes + i, &v, sizeof(v));
  }
  return i;
}

void Pack(const uint8_t* codes, size_t count, uint32_t bits, uint8_t* packed) {
  if (count == 0) return;
  if (bits == 8) {
    std::memcpy(packed, codes, count);
    return;
  }
  size_t done = 0;
  if (bits == 4) done = Pack4(codes, count, packed);
  if (bits == 2) done = Pack2(codes, count, packed);
  if (done == 0) done = PackWords(codes, count, bits, packed);
  BitPackLoops::Reference().pack(codes + done, count - done, bits, packed + done * bits / 8);
}

void Unpack(const uint8_t* packed, size_t count, uint32_t bits, uint8_t* codes) {
  if (count == 0) return;
  if (bits == 8) {
    std::memcpy(codes, packed, count);
    return;
  }
  size_t done = 0;
  if (bits == 4) done = Unpack4(packed, count, codes);
  if (bits == 2) done = Unpack2(packed, count, codes);
  if (done == 0) done = UnpackWords(packed, count, bits, codes);
  BitPackLoops::Reference().unpack(packed + done * bits / 8, count - done, bits, codes + done);
}

const BitPackLoops* Loops() {
  static constexpr BitPackLoops kLoops{Pack, Unpack};
  return &kLoops;
}

}  // namespace
}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(Loops);

namespace {

void Pack(const uint8_t* codes, size_t count, uint32_t bits, uint8_t* packed) {
  uint32_t pending = 0, used = 0;
  for (size_t i = 0; i < count; ++i) {
    pending |= uint32_t{codes[i]} << used;
    used += bits;
    if (used >= 8) {
      *packed++ = static_cast<uint8_t>(pending);
      pending >>= 8;
      used -= 8;
    }
  }
  if (used > 0) *packed = static_cast<uint8_t>(pending);
}

void Unpack(const uint8_t* packed, size_t count, uint32_t bits, uint8_t* codes) {
  uint32_t pending = 0, held = 0;
  for (size_t i = 0; i < count; ++i) {
    if (held < bits) {
      pending |= uint32_t{*packed++} << held;
      held += 8;
    }
    codes[i] = static_cast<uint8_t>(pending & ((1u << bits) - 1));
    pending >>= bits;
    held -= bits;
  }
}

}  // namespace

const BitPackLoops& BitPackLoops::Reference() {
  static constexpr BitPackLoops kLoops{Pack, Unpack};
  return kLoops;
}
const BitPackLoops& BitPackLoops::Best() { return *HWY_DYNAMIC_DISPATCH(Loops)(); }

void PackBits(const uint8_t* codes, size_t count, uint32_t bits, uint8_t* packed) {
  BitPackLoops::Best().pack(codes, count, bits, packed);
}

void UnpackBits(const uint8_t* packed, size_t count, uint32_t bits, uint8_t* codes) {
  BitPackLoops::Best().unpack(packed, count, bits, codes);
}

}  // namespace kvstow
#endif  // HWY_ONCE
