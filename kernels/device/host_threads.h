// The host's part of a call of many pages, by a few threads at once.
#ifndef KVSTOW_KERNELS_DEVICE_HOST_THREADS_H_
#define KVSTOW_KERNELS_DEVICE_HOST_THREADS_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/thread.h"

namespace kvstow {

// Calls f(i) for each i below `count`, in any order, each once: this thread and others that live
// for the call. With few items, or one processor, this thread alone. `f` must not throw.
template <typename F>
void OnHostThreads(size_t count, const F& f) {
  constexpr size_t kMostThreads = 8, kLeastItems = 8;  // of a thread: starting one takes 30 us
  const size_t threads = std::min({kMostThreads, count / kLeastItems,
                                   size_t{std::max(std::thread::hardware_concurrency(), 1u)}});
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) f(i);
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < threads; ++i) {
    absl::StatusOr<std::thread> other = StartThread("kvstow-coder", work);
    if (!other.ok()) break;  // those that are there do it
    others.push_back(*std::move(other));
  }
  work();
  for (std::thread& other : others) other.join();
}

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_HOST_THREADS_H_
