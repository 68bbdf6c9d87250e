// Bit packing, code by code: what the fast loops must equal.
#include "kernels/entropy/bit_pack.h"

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

}  // namespace kvstow
