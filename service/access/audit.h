// The audit log: a line for each call of an operator, and for each one that was refused.
//
// Lines go to AuditLog() (base/log.h). A line is a JSON object: {"identity": ..., "call": ...,
// "arguments": ..., "result": ..., "request": ..., "trace": ..., "left_out": ...}. Thread-safe.
#ifndef KVSTOW_SERVICE_ACCESS_AUDIT_H_
#define KVSTOW_SERVICE_ACCESS_AUDIT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "service/access/call_ids.h"

namespace kvstow {

// `identity` "" = nobody that the server knows. `arguments` are cut after a few KiB.
void Audit(absl::string_view identity, absl::string_view call, absl::string_view arguments,
           const absl::Status& result, const CallIds& ids = {});

// The lines of refused callers without an identity. Anybody can make such calls, as many as they
// like, so there are kLines a second at most. The next line says how many were left out.
class StrangersAudit {
 public:
  static constexpr uint64_t kLines = 10;
  void Note(absl::string_view call, const absl::Status& refusal, const CallIds& ids, Time now);

 private:
  Mutex mu_;
  Time second_ KVSTOW_GUARDED_BY(mu_);
  uint64_t lines_ KVSTOW_GUARDED_BY(mu_) = 0;  // in the second that began at second_
  uint64_t left_out_ KVSTOW_GUARDED_BY(mu_) = 0;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_ACCESS_AUDIT_H_
