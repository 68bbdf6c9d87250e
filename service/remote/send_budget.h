// SendBudget: what each tenant sent to the remote store within the time that values live there.
//
// The remote store forgets values by itself, and does not say which. So nobody counts what a tenant
// holds there: it is at most what was sent within that time. This counts it in 32 steps, so that
// bytes count up to a step longer.
//
// Thread-safe.
#ifndef KVSTOW_SERVICE_REMOTE_SEND_BUDGET_H_
#define KVSTOW_SERVICE_REMOTE_SEND_BUDGET_H_

#include <cstdint>
#include <deque>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace kvstow {

class SendBudget {
 public:
  explicit SendBudget(Duration window);

  // Counts bytes that a tenant is about to send. Returns false, and counts nothing, where it would
  // have sent more than `limit` within the window; 0 = no limit.
  bool Take(const std::string& tenant, uint64_t bytes, uint64_t limit, Time now);

 private:
  struct Step {
    Time begin{};
    uint64_t bytes = 0;
  };
  struct Sent {
    std::deque<Step> steps;  // oldest first
    uint64_t bytes = 0;      // of all steps
  };

  const Duration window_, step_;
  Mutex mu_;
  absl::flat_hash_map<std::string, Sent> sent_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_SEND_BUDGET_H_
