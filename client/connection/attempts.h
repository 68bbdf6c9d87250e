// When a call tries again, and what it says when it gives up.
#ifndef KVSTOW_CLIENT_CONNECTION_ATTEMPTS_H_
#define KVSTOW_CLIENT_CONNECTION_ATTEMPTS_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"

namespace kvstow {

// Decides when to try a call again: after UNAVAILABLE, and after any status with a pushback, which
// is a payload kPushbackKey (a negative one, or one that is no number, forbids it). Waits double
// from one attempt to the next. Each is longer by a random part, so that clients that were refused
// together do not come back together. One object for each call.
class Attempts {
 public:
  Attempts(int limit, Time deadline) : limit_(limit), deadline_(deadline) {}

  // Returns the time to wait before the next attempt, after one failed with `status`; nullopt: give
  // up. With `progress` the attempt did part of the work, and the count starts again.
  std::optional<Duration> Next(const absl::Status& status, bool progress);
  // Does the same when another server is there to try: the next attempt waits for nothing, as often
  // as the limit says, and does not count.
  std::optional<Duration> Elsewhere(const absl::Status& status);
  Time deadline() const { return deadline_; }

 private:
  const int limit_;
  const Time deadline_;
  int failed_ = 0;
  int elsewhere_ = 0;
};

// Returns a status with a message for people: what failed, and what to do when the server was not
// reached.
absl::Status Explain(const absl::Status& status, absl::string_view address);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONNECTION_ATTEMPTS_H_
