// Tickets: 16 random bytes that a caller gets over gRPC, and shows once on another connection to be
// the same caller there.
//
// A ticket is good for one use and for a short time. Each tenant has a number of unused tickets at
// most; its oldest goes when it asks for one more. Thread-safe.
#ifndef KVSTOW_SERVICE_ACCESS_TICKETS_H_
#define KVSTOW_SERVICE_ACCESS_TICKETS_H_

#include <deque>
#include <map>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "service/access/access.h"

namespace kvstow {

class Tickets {
 public:
  static constexpr size_t kBytes = 16;
  static constexpr size_t kMostOfTenant = 1024;  // not used yet

  // `clock` outlives this.
  explicit Tickets(Duration life, const Clock& clock = Clock::Real())
      : life_(life), clock_(clock) {}

  // Returns "" when the system gives no random bytes; that is no ticket.
  std::string New(CallerPtr caller);
  // Uses a ticket up. Returns null when it is unknown, used or too old.
  CallerPtr Take(absl::string_view ticket);

 private:
  struct Entry {
    CallerPtr caller;
    Time until;
  };
  const Duration life_;
  const Clock& clock_;
  Mutex mu_;
  absl::flat_hash_map<std::string, Entry> tickets_ KVSTOW_GUARDED_BY(mu_);
  // Tickets of each tenant, the oldest first; some may be used.
  std::map<std::string, std::deque<std::string>> by_tenant_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_ACCESS_TICKETS_H_
