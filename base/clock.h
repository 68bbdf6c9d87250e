// Time as a parameter: code that depends on time takes a Clock, so tests move it by hand and never
// sleep.
//
// Thread-safe. The time is steady (it never jumps back) and counts from an arbitrary start.
#ifndef KVSTOW_BASE_CLOCK_H_
#define KVSTOW_BASE_CLOCK_H_

#include <atomic>
#include <chrono>

namespace kvstow {

using Duration = std::chrono::nanoseconds;
using Time = std::chrono::time_point<std::chrono::steady_clock, Duration>;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Time Now() const = 0;

  // Returns the machine's steady clock, which lives for ever.
  static const Clock& Real();
};

// A clock that stands still until a test moves it.
class ManualClock final : public Clock {
 public:
  Time Now() const override { return Time(Duration(now_.load())); }
  void Advance(Duration d) { now_ += d.count(); }

 private:
  std::atomic<Duration::rep> now_{1};
};

}  // namespace kvstow

#endif  // KVSTOW_BASE_CLOCK_H_
