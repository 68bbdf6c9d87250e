// sd_notify without a library: tells systemd (Type=notify) the state of the service.
#ifndef KVSTOW_SERVICE_OPS_NOTIFY_H_
#define KVSTOW_SERVICE_OPS_NOTIFY_H_

#include "absl/strings/string_view.h"

namespace kvstow {

// Sends `state` ("READY=1", "STOPPING=1") to the socket that NOTIFY_SOCKET names; does nothing when
// there is none. Thread-safe.
void NotifySystemd(absl::string_view state);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPS_NOTIFY_H_
