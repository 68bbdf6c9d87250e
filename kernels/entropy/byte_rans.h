// Byte rANS: codes many bytes by static tables. 32 states are interleaved over one stream of words,
// so a vector of states decodes at once (Duda, arXiv:1311.2540; interleaving as in Giesen's
// ryg_rans and the 32-way coder of htscodecs, arXiv:1402.3392).
//
// Bytes stand in rows of a fixed width. The table of a column's *class* codes the column's bytes.
// Byte i of a block of rows belongs to lane i % 32; the next block begins at lane 0 again. All
// lanes share the words: in a step of 32 bytes, the lowest lane that needs a word takes the first
// one. A state has 32 bits and is never below 2^16; probabilities have 11 bits, words 16.
//
//   stream := 32 states (uint32), words (uint16): little-endian, both as a decoder wants them
//
// Free functions and values; thread-compatible. The bytes are the same on every machine and SIMD
// target. Decoding hostile bytes reads nothing out of bounds, and writes no more than was asked
// for.
#ifndef KVSTOW_KERNELS_ENTROPY_BYTE_RANS_H_
#define KVSTOW_KERNELS_ENTROPY_BYTE_RANS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "kernels/entropy/loops.h"

namespace kvstow {

inline constexpr uint32_t kByteRansBits = 11;
inline constexpr uint32_t kByteRansTotal = 1u << kByteRansBits;
inline constexpr uint32_t kByteRansLow = 1u << 16;

// The frequency of each byte among kByteRansTotal.
using ByteFrequencies = std::array<uint16_t, 256>;
using ByteCounts = std::array<uint32_t, 256>;

// Returns frequencies close to `counts`, which are not all 0. A byte that was counted gets at
// least 1.
ByteFrequencies NormalizeCounts(const ByteCounts& counts);

// Writes the first and the last byte that can come, then the frequency of each between: 7 bits; or,
// with the top bit set, 7 low bits and a byte with the rest.
void WriteFrequencies(const ByteFrequencies& frequencies, std::string& out);
// Fails with DATA_LOSS unless the frequencies sum to kByteRansTotal.
absl::StatusOr<ByteFrequencies> ReadFrequencies(ByteReader& reader);

// The class of each column of a block, and the block's rows.
struct ByteRansBlock {
  std::span<const uint8_t> classes;  // at least one; each names a table
  size_t rows = 0;
  size_t size() const { return rows * classes.size(); }
};

// Appends the stream of `bytes` to `out`, one block after another. Each byte must have a frequency
// in the table of its class.
void ByteRansEncode(std::span<const ByteFrequencies> tables, std::span<const ByteRansBlock> blocks,
                    std::span<const uint8_t> bytes, std::string& out);

// A decoder's table: for each class and slot the byte (bits 0..7), the slot's distance from the
// byte's first slot (8..18) and the byte's frequency (19..31).
std::vector<uint32_t> ByteRansSlots(std::span<const ByteFrequencies> tables);

// The begin of each column's slots: classes, repeated for 32 columns past the last.
std::vector<uint32_t> ByteRansColumns(std::span<const uint8_t> classes);

class ByteRansDecoder {
 public:
  // `stream` must outlive this.
  explicit ByteRansDecoder(std::span<const uint8_t> stream);
  ByteRansDecoder(const ByteRansDecoder&) = delete;
  ByteRansDecoder& operator=(const ByteRansDecoder&) = delete;

  // Decodes the next block, of `count` bytes. Returns false when the words ran out; the output is
  // then unspecified. `loops` is for tests.
  bool Decode(std::span<const uint32_t> slots, std::span<const uint32_t> columns, size_t count,
              uint8_t* out, const ByteRansLoops& loops = ByteRansLoops::Best());
  // Returns whether every word was read and every state is where its encoder began: an undamaged
  // stream's end.
  bool AtEnd() const;

 private:
  // Moves the last words to a place where zeros follow them. Returns false when they were there.
  bool MoveToTail();

  ByteRansLanes lanes_;
  const uint8_t* end_;
  bool in_tail_ = false;
  std::array<uint8_t, 4 * kByteRansLanes> tail_{};
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_ENTROPY_BYTE_RANS_H_
