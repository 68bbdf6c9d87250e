// The largest magnitude of a vector. Exact, so any order of the values gives the same bits.
#ifndef KVSTOW_KERNELS_QUANTIZE_MAGNITUDE_H_
#define KVSTOW_KERNELS_QUANTIZE_MAGNITUDE_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace kvstow {

// `values` are finite. Magnitudes of floats are ordered as their bits are.
inline float LargestMagnitude(const float* values, size_t count) {
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & 0x7fffffff);
  }
  return std::bit_cast<float>(largest);
}

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_MAGNITUDE_H_
