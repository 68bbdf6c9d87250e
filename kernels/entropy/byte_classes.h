// Classes of columns: which columns of bytes share a table of byte rANS (byte_rans.h).
//
// A table for each column would cost more than it saves, so columns with similar bytes share one.
// The classes minimise the bits of all bytes (k-means over histograms with the Kullback-Leibler
// divergence; Dhillon et al., JMLR 3, 2003). Free functions; thread-safe. All arithmetic is in
// whole numbers, so the result is the same on every machine.
#ifndef KVSTOW_KERNELS_ENTROPY_BYTE_CLASSES_H_
#define KVSTOW_KERNELS_ENTROPY_BYTE_CLASSES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/entropy/byte_rans.h"

namespace kvstow {

struct ByteClasses {
  std::vector<uint8_t> of;              // of each column; below tables.size()
  std::vector<ByteFrequencies> tables;  // at most kMaxByteClasses
  uint64_t bits = 0;                    // cost of the bytes by these tables, rounded up
};

// Returns log2(x) in units of 1/256, rounded down; x > 0.
uint32_t Log2Fixed(uint32_t x);

// Puts all columns into one class.
ByteClasses OneClass(std::span<const uint8_t> bytes, size_t columns);

// Makes at most `most` classes, 1 <= most <= kMaxByteClasses. `bytes` are blocks of 1 <= `rows` <
// 65,536 rows, one after another; widths[i] is the number of columns of block i.
ByteClasses ClassifyColumns(std::span<const uint8_t> bytes, std::span<const size_t> widths,
                            size_t rows, size_t most);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_ENTROPY_BYTE_CLASSES_H_
