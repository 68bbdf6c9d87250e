// splitmix64 (Steele, Lea and Flood 2014): the fixed random numbers of the formats. A pure
// function, constexpr, so that GPU code may call it as well.
#ifndef KVSTOW_KERNELS_PAGE_SPLIT_MIX_H_
#define KVSTOW_KERNELS_PAGE_SPLIT_MIX_H_

#include <cstdint>

namespace kvstow {

constexpr uint64_t SplitMix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Returns a number close to a standard Gaussian: the sum of twelve 16-bit numbers, less its mean,
// over 2^16. The numbers are the four parts, the low part first, of splitmix64(3 index + k), k = 0,
// 1, 2.
inline float FixedGaussian(uint64_t index) {
  int64_t sum = -6 * 65535;
  for (uint64_t k = 0; k < 3; ++k) {
    const uint64_t bits = SplitMix64(3 * index + k);
    for (int shift = 0; shift < 64; shift += 16) sum += bits >> shift & 0xffff;
  }
  return static_cast<float>(sum) * 0x1p-16f;
}

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_PAGE_SPLIT_MIX_H_
