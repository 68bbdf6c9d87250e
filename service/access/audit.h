// The audit log: a line for each call of an operator, and for each one that was refused.
//
// Lines go to AuditLog() (base/log.h). A line is a JSON object: {"identity": ..., "call": ...,
// "arguments": ..., "result": ..., "request": ..., "trace": ...}. A free function; thread-safe.
#ifndef KVSTOW_SERVICE_ACCESS_AUDIT_H_
#define KVSTOW_SERVICE_ACCESS_AUDIT_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "service/access/call_ids.h"

namespace kvstow {

// `identity` "" = nobody that the server knows. `arguments` are cut after a few KiB.
void Audit(absl::string_view identity, absl::string_view call, absl::string_view arguments,
           const absl::Status& result, const CallIds& ids = {});

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_ACCESS_AUDIT_H_
