// CallLog: the slowest and the failing calls of the last hour.
//
// A call has a method ("Lookup", "Get page"), the name of its space ("" = none, or none that a
// space can have) and a code ("OK", "NOT_FOUND", "CORRUPT"). Keys, tokens and content of pages stay
// out. Calls of one method, space and code share a row, so that a flood of one kind leaves room for
// others. When all rows are taken, the fastest slow one or the oldest failing one gives way.
//
// A call that failed, or took as long as LogFrom() says, also gets a line in CallsLog()
// (base/log.h): {"call": ..., "space": ..., "code": ..., "ms": ..., "request": ..., "trace": ...,
// "span": ..., "left_out": ...}. There are kLines a second at most; the next line says how many
// were left out.
//
// Thread-safe. A call that is neither slow nor failing costs one atomic read.
#ifndef KVSTOW_SERVICE_OPS_CALL_LOG_H_
#define KVSTOW_SERVICE_OPS_CALL_LOG_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "service/access/call_ids.h"

namespace kvstow {

struct CallRow {
  std::string method, space, code;
  uint64_t calls = 0;  // a slow row counts those that were slow
  Duration slowest{};  // of them
  Time last{};         // end of the last call
};

class CallLog {
 public:
  static constexpr Duration kKept = std::chrono::hours(1);
  static constexpr Duration kSlow = std::chrono::milliseconds(1);  // what is faster is never slow
  static constexpr size_t kSlowRows = 16, kFailingRows = 32;
  static constexpr uint64_t kLines = 10;
  static CallIds NoIds() { return {}; }

  // Logs calls that take as long. Failing ones are logged whatever they take.
  void LogFrom(Duration slow) { log_from_ = slow; }

  // Notes a call that ended `now` after `took`. A code other than "OK" is a failure. `ids` is
  // called for a line of the log alone.
  void Note(absl::string_view method, absl::string_view space, absl::string_view code,
            Duration took, Time now, absl::FunctionRef<CallIds()> ids = NoIds);
  // Drops rows whose last call is longer ago than kKept. Somebody calls it now and then.
  void DropOld(Time now);

  std::vector<CallRow> Slow() const;           // the slowest first
  std::vector<CallRow> Failing() const;        // the last first
  uint64_t failed() const { return failed_; }  // calls since the start

 private:
  using Rows = std::vector<CallRow>;
  // Adds a call to its row. Makes one when there is none, in place of the weakest of `most` rows.
  static void Add(const CallRow& call, size_t most, bool (*weaker)(const CallRow&, const CallRow&),
                  Rows& rows);
  void SetThreshold() KVSTOW_REQUIRES(mu_);
  // Returns whether a line may be written, and how many were left out before it.
  bool MayWrite(Time now, uint64_t& left_out);

  mutable Mutex mu_;
  Rows slow_ KVSTOW_GUARDED_BY(mu_), failing_ KVSTOW_GUARDED_BY(mu_);
  uint64_t lines_ KVSTOW_GUARDED_BY(mu_) = 0;  // in the second that began at second_
  uint64_t left_out_ KVSTOW_GUARDED_BY(mu_) = 0;
  Time second_ KVSTOW_GUARDED_BY(mu_);
  std::atomic<Duration> slow_above_ = kSlow;
  std::atomic<Duration> log_from_ = Duration::max();
  std::atomic<uint64_t> failed_ = 0;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPS_CALL_LOG_H_
