// CallIds: what ties a call to its caller's own logs and traces.
//
// A client names a call in the metadata `x-request-id`, and its trace in `traceparent` (W3C Trace
// Context, https://www.w3.org/TR/trace-context/). Log lines of the server repeat both. What is no
// such id counts as none: metadata come from anybody, and go into logs.
//
// Values and free functions; thread-safe.
#ifndef KVSTOW_SERVICE_ACCESS_CALL_IDS_H_
#define KVSTOW_SERVICE_ACCESS_CALL_IDS_H_

#include <string>

#include "absl/strings/string_view.h"

namespace kvstow {

inline constexpr char kRequestIdKey[] = "x-request-id";
inline constexpr char kTraceparentKey[] = "traceparent";

struct CallIds {
  std::string request;  // 1 to 64 letters, digits, '-', '_' and '.'; "" = none
  std::string trace;    // 32 hexadecimal digits; "" = none
  std::string span;     // 16, of the caller's span; "" without a trace
};

CallIds ReadCallIds(absl::string_view request_id, absl::string_view traceparent);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_ACCESS_CALL_IDS_H_
