// splitmix64 (Steele, Lea and Flood 2014): fixed random numbers of the formats, a pure function.
#ifndef KVSTOW_KERNELS_SPLIT_MIX_H_
#define KVSTOW_KERNELS_SPLIT_MIX_H_

#include <cstdint>

namespace kvstow {

inline uint64_t SplitMix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_SPLIT_MIX_H_
