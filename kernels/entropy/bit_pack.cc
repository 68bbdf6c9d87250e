#include "kernels/entropy/bit_pack.h"

#include <cstring>

namespace kvstow {

void PackBitsReference(const uint8_t* codes, size_t count, uint32_t bits, uint8_t* packed) {
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

void UnpackBitsReference(const uint8_t* packed, size_t count, uint32_t bits, uint8_t* codes) {
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

void PackBits(const uint8_t* codes, size_t count, uint32_t bits, uint8_t* packed) {
  if (bits == 8) {
    std::memcpy(packed, codes, count);
    return;
  }
  // Two or four codes fill a byte: plain loops that the compiler turns into vectors.
  size_t done = 0;
  if (bits == 4) {
    for (; done + 2 <= count; done += 2) {
      packed[done / 2] = static_cast<uint8_t>(codes[done] | codes[done + 1] << 4);
    }
  } else if (bits == 2) {
    for (; done + 4 <= count; done += 4) {
      packed[done / 4] = static_cast<uint8_t>(codes[done] | codes[done + 1] << 2 |
                                              codes[done + 2] << 4 | codes[done + 3] << 6);
    }
  }
  PackBitsReference(codes + done, count - done, bits, packed + done * bits / 8);
}

void UnpackBits(const uint8_t* packed, size_t count, uint32_t bits, uint8_t* codes) {
  if (bits == 8) {
    std::memcpy(codes, packed, count);
    return;
  }
  size_t done = 0;
  if (bits == 4) {
    for (; done + 2 <= count; done += 2) {
      codes[done] = packed[done / 2] & 15;
      codes[done + 1] = packed[done / 2] >> 4;
    }
  } else if (bits == 2) {
    for (; done + 4 <= count; done += 4) {
      for (size_t i = 0; i < 4; ++i) codes[done + i] = (packed[done / 4] >> (2 * i)) & 3;
    }
  }
  UnpackBitsReference(packed + done * bits / 8, count - done, bits, codes + done);
}

}  // namespace kvstow
