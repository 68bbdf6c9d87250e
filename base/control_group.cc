#include "base/control_group.h"

#include <algorithm>
#include <fstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace kvstow {
namespace {

// The groups of a process, as /proc/PROCESS/cgroup tells them. "" is the root of its kind.
struct Groups {
  std::string second;        // of version 2
  std::string first_memory;  // of version 1, for memory
};

Groups GroupsOf(const std::string& file) {
  Groups out;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    // "0::/system.slice/kvstowd.service", or "9:cpu,memory:/..." of version 1
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || !absl::StartsWith(parts[2], "/")) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    if (parts[1].empty()) out.second = parts[2];
    if (std::ranges::find(controllers, "memory") != controllers.end()) out.first_memory = parts[2];
  }
  return out;
}

// A container may see no folder of its own group, but the group as the root.
void TakeLeast(const std::string& mount, std::string group, absl::string_view file,
               std::optional<uint64_t>& least) {
  while (absl::EndsWith(group, "/")) group.pop_back();
  for (;; group.resize(group.rfind('/'))) {
    std::ifstream in(absl::StrCat(mount, group, "/", file));
    uint64_t limit = 0;  // "max" is no number
    if (in >> limit && limit > 0) least = std::min(least.value_or(limit), limit);
    if (group.empty()) return;
  }
}

}  // namespace

std::optional<uint64_t> ControlGroupMemory(const std::string& root, absl::string_view process) {
  const Groups groups = GroupsOf(absl::StrCat(root, "/proc/", process, "/cgroup"));
  std::optional<uint64_t> least;
  TakeLeast(root + "/sys/fs/cgroup", groups.second, "memory.max", least);
  TakeLeast(root + "/sys/fs/cgroup/memory", groups.first_memory, "memory.limit_in_bytes", least);
  return least;
}

}  // namespace kvstow
