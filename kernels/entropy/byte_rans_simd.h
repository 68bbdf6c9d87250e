// The decoding loop of byte_rans.h on vectors; only byte_rans.cc calls it.
#ifndef KVSTOW_KERNELS_ENTROPY_BYTE_RANS_LOOPS_H_
#define KVSTOW_KERNELS_ENTROPY_BYTE_RANS_LOOPS_H_

#include "kernels/entropy/byte_rans.h"

namespace kvstow {

// Does steps of 32 bytes while there are 32 to write and lanes.next <= lanes.last. `columns` has 32
// more entries than columns. `done` bytes of the block's `count`, whole steps, are there already.
// Returns how many are there now.
size_t ByteRansLoop(const uint32_t* slots, std::span<const uint32_t> columns, size_t count,
                    ByteRansDecoder::Lanes& lanes, uint8_t* out, size_t done);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_ENTROPY_BYTE_RANS_LOOPS_H_
