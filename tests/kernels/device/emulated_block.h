// A thread block of a GPU, emulated: its threads and its shared memory.
#ifndef KVSTOW_TESTS_KERNELS_DEVICE_EMULATED_BLOCK_H_
#define KVSTOW_TESTS_KERNELS_DEVICE_EMULATED_BLOCK_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/device/slab_layout.h"

namespace kvstow::testing {

// In which order the threads of a phase run. A result that depends on it is a race.
enum class ThreadOrder { kForward, kBackward };

// Calls f(thread) for each of `count` threads.
template <typename F>
void ForThreads(ThreadOrder order, uint32_t count, F f) {
  for (uint32_t i = 0; i < count; ++i) f(order == ThreadOrder::kForward ? i : count - 1 - i);
}

// A thread block's shared memory: as a GPU's it begins with whatever was there.
class Shared {
 public:
  explicit Shared(size_t bytes) : words_((bytes + 15) / 16), bytes_(bytes) {}
  uint8_t* Fresh() {
    auto* const begin = reinterpret_cast<uint8_t*>(words_.data());
    std::fill(begin, begin + bytes_, uint8_t{0xff});  // NaN
    return begin;
  }

 private:
  struct alignas(16) Word {
    uint8_t bytes[16];
  };
  std::vector<Word> words_;
  size_t bytes_;
};

// A warp that codes a strip: see strip.cuh. The states begin with whatever was there.
template <typename State>
class EmulatedWarp {
 public:
  explicit EmulatedWarp(ThreadOrder order) : order_(order), states_(kLanes) {
    std::memset(static_cast<void*>(states_.data()), 0xff, kLanes * sizeof(State));
  }
  template <typename Step>
  void Each(const Step& step) const {
    ForThreads(order_, kLanes, [&](uint32_t lane) { step(lane, states_[lane]); });
  }
  template <typename Step>
  void Pairs(uint32_t distance, const Step& step) const {
    const std::vector<State> before = states_;
    ForThreads(order_, kLanes, [&](uint32_t lane) {
      step(lane, states_[lane], [&](const auto& of) { return of(before[lane ^ distance]); });
    });
  }

 private:
  static constexpr uint32_t kLanes = 32;
  const ThreadOrder order_;
  mutable std::vector<State> states_;
};

// All blocks of a step, as run_step.cuh starts them, one after the other.
template <typename Launch, typename Step>
void RunStep(ThreadOrder order, const Launch& launch, const Step& step) {
  const uint32_t blocks = step.Blocks(launch);
  Shared shared(step.SharedBytes(launch));
  ForThreads(order, launch.pages * blocks, [&](uint32_t i) {
    step.Code(launch, i / blocks, i % blocks, shared.Fresh(),
              [&](const auto& phase) { ForThreads(order, gpu::kThreads, phase); });
  });
}

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_KERNELS_DEVICE_EMULATED_BLOCK_H_
