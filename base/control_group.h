// The memory that Linux lets a process have.
//
// Free function; thread-safe.
#ifndef KVSTOW_BASE_CONTROL_GROUP_H_
#define KVSTOW_BASE_CONTROL_GROUP_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace kvstow {

// Returns the least memory limit of the control groups that a process is in: its own group's and
// those of the groups above it. Reads both versions of control groups. Nothing when no group has a
// limit. `process` is its number, or "self". `root` is "", or a folder of a test that has the same
// files below it.
std::optional<uint64_t> ControlGroupMemory(const std::string& root, absl::string_view process);

}  // namespace kvstow

#endif  // KVSTOW_BASE_CONTROL_GROUP_H_
