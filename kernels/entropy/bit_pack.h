// Bit packing: codes of 1 to 8 bits in a row. The first code is in the lowest bits of the first
// byte; unused high bits of the last byte are zero.
//
// Free functions, thread-safe. The bytes are the same on every machine (kernels/entropy/loops.h).
#ifndef KVSTOW_KERNELS_ENTROPY_BIT_PACK_H_
#define KVSTOW_KERNELS_ENTROPY_BIT_PACK_H_

#include <cstddef>
#include <cstdint>

namespace kvstow {

constexpr size_t PackedBytes(size_t count, uint32_t bits) { return (count * bits + 7) / 8; }

// `codes` are below 2^bits; `packed` has PackedBytes(count, bits).
void PackBits(const uint8_t* codes, size_t count, uint32_t bits, uint8_t* packed);
void UnpackBits(const uint8_t* packed, size_t count, uint32_t bits, uint8_t* codes);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_ENTROPY_BIT_PACK_H_
