// Logs: spdlog with one format, set once at start.
//
// Use SPDLOG-style calls on Log(): kvstow::Log().info("ready in {} ms", ms). Thread-safe. Never log
// keys in full, token ids or payload: they are prompt text.
#ifndef KVSTOW_BASE_LOG_H_
#define KVSTOW_BASE_LOG_H_

#include <spdlog/spdlog.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace kvstow {

// The process's logger; writes to standard error.
spdlog::logger& Log();

// The log of what operators did, beside Log() on standard error. Its messages are JSON objects. It
// is on at every level of Log() but `off`.
spdlog::logger& AuditLog();

// The log of slow and failing calls, beside Log() on standard error. Its messages are JSON objects.
// They are warnings.
spdlog::logger& CallsLog();

// `level` is trace, debug, info, warn, error or off; `format` is text or json (one object a line).
// INVALID_ARGUMENT names any other value.
absl::Status SetUpLog(absl::string_view level, absl::string_view format);

}  // namespace kvstow

#endif  // KVSTOW_BASE_LOG_H_
