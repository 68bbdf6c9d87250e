#include "storage/store/scrubber.h"

#include <chrono>

namespace kvstow {
namespace {

constexpr double kBetweenPasses = 1;  // seconds, at least

}  // namespace

Scrubber::Scrubber(TieredStore& store, uint64_t bytes_per_second) : store_(store) {
  if (bytes_per_second == 0) return;
  thread_ = std::thread([this, bytes_per_second] { Run(bytes_per_second); });
}

Scrubber::~Scrubber() {
  {
    MutexLock lock(mu_);
    end_ = true;
  }
  ended_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

bool Scrubber::Pause(double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  MutexLock lock(mu_);
  for (auto now = std::chrono::steady_clock::now(); !end_ && now < end;
       now = std::chrono::steady_clock::now()) {
    ended_.WaitFor(mu_, std::chrono::duration_cast<std::chrono::nanoseconds>(end - now));
  }
  return !end_;
}

void Scrubber::Run(uint64_t bytes_per_second) {
  do {
    for (const PageRef& page : store_.residency().PageRefs()) {
      const uint64_t bytes = store_.Scrub(page);
      if (!Pause(static_cast<double>(bytes) / bytes_per_second)) return;
    }
  } while (Pause(kBetweenPasses));
}

}  // namespace kvstow
