// What a machine tells about itself that decides how well a server runs on it.
//
// Free functions that read files and ask the kernel; they change nothing. A fact that cannot be had
// (no such file, no permission, not this kernel) is absent, never an error. Thread-safe.
#ifndef KVSTOW_CLIENT_CLI_DOCTOR_HOST_FACTS_H_
#define KVSTOW_CLIENT_CLI_DOCTOR_HOST_FACTS_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace kvstow::cli {

struct HostFacts {
  std::optional<uint64_t> memory_bytes;      // of the machine, or the server's limit if less
  std::string huge_pages;                    // "always", "madvise", "never"; "" = not known
  std::string shared_huge_pages;             // the same for shared memory: "advise", "never", ...
  std::optional<uint64_t> open_files;        // soft limit of the server's process
  std::optional<bool> clock_synchronised;    // by NTP or another source
  std::optional<uint64_t> server_processes;  // processes of the name kvstowd
  bool has_gpu = false;                      // there is /dev/nvidia0
  std::vector<uint16_t> open_ports;          // TCP ports that listen beyond loopback
};

// `root` is "/", or a folder of a test that has the same files below it.
HostFacts ReadHost(const std::string& root);

struct FolderFacts {
  bool exists = false;
  std::string file_system;                   // "ext4", "tmpfs", ...; "" = not known
  bool in_memory = false;                    // tmpfs or ramfs: it takes RAM
  bool on_network = false;                   // NFS, CIFS, FUSE and the like
  uint64_t total_bytes = 0, free_bytes = 0;  // of its file system
  bool others_may_enter = false;             // its mode lets group or others in
  bool writable = false;                     // by this process
};
FolderFacts ReadFolder(const std::string& path);

// What a file in the folder reads and writes past the page cache, by blocks of 4 MiB.
struct DiskSpeed {
  double write_mb_s = 0, read_mb_s = 0;
  bool direct = true;  // false: the file system cannot pass the page cache by
};
// Writes `bytes` (a multiple of 4 MiB) to a new file in `folder`, reads them back and removes the
// file. Absent when the folder does not take it; `why` says what failed.
std::optional<DiskSpeed> MeasureDisk(const std::string& folder, uint64_t bytes, std::string& why);

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_DOCTOR_HOST_FACTS_H_
