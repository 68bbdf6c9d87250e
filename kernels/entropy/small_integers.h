// Lists of small integers, most of them near 0, as a stream of one rANS state (rans.h has the
// method).
//
// A *spread* of 1 to kMaxSpread says how far the integers lie from 0: p(x) falls by the same factor
// from |x| to |x| + 1. The writer takes the spread that makes the list shortest, and tells it
// apart.
//
// Stateless: thread-safe. All arithmetic is of integers: the same bytes on every machine.
#ifndef KVSTOW_KERNELS_ENTROPY_SMALL_INTEGERS_H_
#define KVSTOW_KERNELS_ENTROPY_SMALL_INTEGERS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace kvstow {

inline constexpr uint32_t kMaxSpread = 10;
inline constexpr int kMaxSmallInteger = 12;

// Returns the bits that each integer takes in a list, from -limit to limit <= kMaxSmallInteger.
std::vector<float> SmallIntegerBits(uint32_t spread, int limit);

// Appends the list to `out`.
void PutSmallIntegers(std::span<const int8_t> values, uint32_t spread, int limit, std::string& out);

// Reads as many integers as `values` has from the start of `bytes`, and takes what it read from
// `bytes`. Fails with DATA_LOSS when the stream is cut or does not end well.
absl::Status GetSmallIntegers(std::span<const uint8_t>& bytes, uint32_t spread, int limit,
                              std::span<int8_t> values);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_ENTROPY_SMALL_INTEGERS_H_
