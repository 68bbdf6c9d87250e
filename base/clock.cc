#include "base/clock.h"

namespace kvstow {
namespace {

class SteadyClock final : public Clock {
 public:
  Time Now() const override {
    return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now());
  }
};

}  // namespace

const Clock& Clock::Real() {
  static const SteadyClock* const clock = new SteadyClock;
  return *clock;
}

}  // namespace kvstow
