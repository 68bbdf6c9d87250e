// The lanes of an rANS stream (entropy/rans.h) on the GPU: 16 threads of a warp, one a lane. They
// go step by step together. On the host, for tests, one thread does what all of them do.
//
//   PerLane<uint32_t> x;                                  // a register of each lane
//   Lanes::For([&](uint32_t l) { x[l] = ...; });          // each lane its own
//   const uint32_t wants = Lanes::Ballot([&](uint32_t l) { return x[l] < 7; });
//   Lanes::One(l, [&] { n = x[l]; });                     // lane l alone: the others' n are old
//   n = Lanes::From(l, n);                                // and now all have it
//   Lanes::For([&](uint32_t l) { x[l] = Lanes::Pick(y, 15 - l); });   // of another lane
//   Lanes::Meet();                                        // what one wrote to memory, all may read
//
// Variables that are no PerLane have one value for all lanes. Control flow outside For and One must
// be the same for all lanes.
#ifndef KVSTOW_KERNELS_CUDA_JOINT_HALF_WARP_CUH_
#define KVSTOW_KERNELS_CUDA_JOINT_HALF_WARP_CUH_

#include <bit>
#include <cstdint>

#include "kernels/cuda/octet.cuh"
#include "kernels/entropy/rans.h"

namespace kvstow::gpu {

inline constexpr uint32_t kWarp = 32;

KVSTOW_GPU uint32_t CountBits(uint32_t word) {
#ifdef __CUDA_ARCH__
  return static_cast<uint32_t>(__popc(word));
#else
  return static_cast<uint32_t>(std::popcount(word));
#endif
}

#ifdef __CUDA_ARCH__

template <typename T>
class PerLane {
 public:
  __device__ T& operator[](uint32_t) { return value_; }
  __device__ const T& operator[](uint32_t) const { return value_; }

 private:
  T value_{};
};

struct Lanes {
  static constexpr uint32_t kAll = 0xffff;
  // Returns whether a thread of a warp works for the warp's lanes.
  static __device__ bool Has(uint32_t thread) { return thread % kWarp < kRansLanes; }
  template <typename F>
  static __device__ void For(const F& f) {
    f(threadIdx.x % kWarp);
  }
  // Bit l: what f(l) returns.
  template <typename F>
  static __device__ uint32_t Ballot(const F& f) {
    return __ballot_sync(kAll, f(threadIdx.x % kWarp));
  }
  template <typename F>
  static __device__ void One(uint32_t lane, const F& f) {
    if (threadIdx.x % kWarp == lane) f();
    __syncwarp(kAll);
  }
  template <typename T>
  static __device__ T From(uint32_t lane, T value) {
    return __shfl_sync(kAll, value, static_cast<int>(lane));
  }
  // In For, of all lanes at once. `lane` counts modulo the lanes.
  template <typename T>
  static __device__ T Pick(const PerLane<T>& values, uint32_t lane) {
    return __shfl_sync(kAll, values[lane], static_cast<int>(lane), kRansLanes);
  }
  static __device__ void Meet() { __syncwarp(kAll); }
};

#else

template <typename T>
class PerLane {
 public:
  T& operator[](uint32_t lane) { return values_[lane]; }
  const T& operator[](uint32_t lane) const { return values_[lane]; }

 private:
  T values_[kRansLanes] = {};
};

struct Lanes {
  static bool Has(uint32_t thread) { return thread % kWarp == 0; }
  template <typename F>
  static void For(const F& f) {
    for (uint32_t lane = 0; lane < kRansLanes; ++lane) f(lane);
  }
  template <typename F>
  static uint32_t Ballot(const F& f) {
    uint32_t bits = 0;
    for (uint32_t lane = 0; lane < kRansLanes; ++lane) bits |= uint32_t{f(lane)} << lane;
    return bits;
  }
  template <typename F>
  static void One(uint32_t, const F& f) {
    f();
  }
  template <typename T>
  static T From(uint32_t, T value) {
    return value;
  }
  template <typename T>
  static T Pick(const PerLane<T>& values, uint32_t lane) {
    return values[lane % kRansLanes];
  }
  static void Meet() {}
};

#endif

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_JOINT_HALF_WARP_CUH_
