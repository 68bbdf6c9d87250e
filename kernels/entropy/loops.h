// The loops behind entropy/bit_pack.h, entropy/byte_rans.h and entropy/byte_classes.h, which are
// their manuals. kernels/page/loops.h says what a table is. kernels/entropy/plane_loops.h has the
// plane coder's.
#ifndef KVSTOW_KERNELS_ENTROPY_LOOPS_H_
#define KVSTOW_KERNELS_ENTROPY_LOOPS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvstow {

struct BitPackLoops {
  void (*pack)(const uint8_t* codes, size_t count, uint32_t bits, uint8_t* packed);
  void (*unpack)(const uint8_t* packed, size_t count, uint32_t bits, uint8_t* codes);
  static const BitPackLoops& Reference();
  static const BitPackLoops& Best();
};

inline constexpr size_t kMaxByteClasses = 16;

// A byte that came in a column, and how often.
struct ByteCount {
  uint8_t byte;
  uint16_t count;
};

// What a byte costs in each class; all classes of a byte are next to each other.
using ByteCosts = std::array<std::array<uint32_t, kMaxByteClasses>, 256>;

struct ByteClassLoops {
  // Returns the class below `most` where `entries` cost least, the first of several. Sums are taken
  // modulo 2^32.
  uint8_t (*cheapest)(std::span<const ByteCount> entries, const ByteCosts& costs, size_t most);
  static const ByteClassLoops& Reference();
  static const ByteClassLoops& Best();
};

inline constexpr size_t kByteRansLanes = 32;

// States and words: a step of 32 bytes may begin while next <= last.
struct ByteRansLanes {
  alignas(64) std::array<uint32_t, kByteRansLanes> state{};
  const uint8_t* next = nullptr;
  const uint8_t* last = nullptr;
};

struct ByteRansLoops {
  // Does steps of 32 bytes while there are 32 to write and lanes.next <= lanes.last. `columns` has
  // 32 more entries than columns. `done` bytes of the block's `count`, whole steps, are there
  // already. Returns how many are there now.
  size_t (*decode)(const uint32_t* slots, std::span<const uint32_t> columns, size_t count,
                   ByteRansLanes& lanes, uint8_t* out, size_t done);
  static const ByteRansLoops& Reference();
  static const ByteRansLoops& Best();
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_ENTROPY_LOOPS_H_
