// History: the work of the last six hours, by the minute.
//
// Somebody calls Observe every second or so with counters that only grow. History keeps what they
// grew by in each minute, for the last 360: about 30 KiB. An interval is longer than a minute when
// nobody observed for longer. Times are those of the caller's clock.
//
// Thread-safe.
#ifndef KVSTOW_SERVICE_OPS_HISTORY_H_
#define KVSTOW_SERVICE_OPS_HISTORY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"

namespace kvstow {

// Work since the start, or within an interval.
struct Work {
  uint64_t lookup_keys = 0, lookup_hit_keys = 0;
  uint64_t put_raw_bytes = 0;      // of stored pages
  uint64_t put_stored_bytes = 0;   // the same, encoded
  uint64_t get_payload_bytes = 0;  // of pages that hit
  uint64_t failed_calls = 0;
  bool operator==(const Work&) const = default;
};

class History {
 public:
  static constexpr Duration kStep = std::chrono::minutes(1);
  static constexpr size_t kSteps = 360;

  struct Interval {
    Time begin, end;
    Work work;
  };

  // `total` has not shrunk since the last call.
  void Observe(Time now, const Work& total);
  // Returns the intervals, oldest first. The last is under way: it may be short.
  std::vector<Interval> Intervals() const;

 private:
  mutable Mutex mu_;
  bool started_ KVSTOW_GUARDED_BY(mu_) = false;
  Work before_ KVSTOW_GUARDED_BY(mu_);  // all work up to the interval that is under way
  Interval now_ KVSTOW_GUARDED_BY(mu_);
  std::deque<Interval> past_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPS_HISTORY_H_
