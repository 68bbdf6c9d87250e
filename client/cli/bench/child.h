// A server that a comparison starts, and stops afterwards. It ends with this process, whatever ends
// that.
#ifndef KVSTOW_CLIENT_CLI_BENCH_CHILD_H_
#define KVSTOW_CLIENT_CLI_BENCH_CHILD_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace kvstow::cli {

class Child {
 public:
  // Runs `argv`, with the program from PATH, in the network of the calling thread. Its output goes
  // into `log_path`. Fails with NOT_FOUND when there is no such program. The kernel ends the child
  // with that thread.
  static absl::StatusOr<std::unique_ptr<Child>> Start(const std::vector<std::string>& argv,
                                                      const std::string& log_path);
  ~Child();  // unless it has ended: sends SIGTERM, after 10 seconds SIGKILL, and waits for the end
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Returns the CPU time of the process since it began, in user space and in the kernel.
  double CpuSeconds() const;
  // Returns the most memory that it ever had resident; 0 when the kernel does not say.
  uint64_t PeakRssBytes() const;
  // Waits until it ends by itself. Returns its exit code, or minus the signal that ended it.
  int Wait();

 private:
  explicit Child(pid_t pid) : pid_(pid) {}
  const pid_t pid_;
  bool ended_ = false;
};

// Runs a program to its end. Fails with NOT_FOUND when there is no such program, and with INTERNAL,
// and what the program wrote, when its exit code is not 0. `log_path` takes its output.
absl::Status RunToEnd(const std::vector<std::string>& argv, const std::string& log_path);

// What all cores of this machine have done so far, in the kernel's ticks.
struct MachineTime {
  uint64_t busy = 0, idle = 0;
  double BusySince(const MachineTime& before) const;  // a share of all cores; 0 when no tick passed
};
MachineTime TimeOfMachine();

// Returns the CPU time of this process.
double OwnCpuSeconds();

// A folder under the system's temporary one. The destructor removes it.
class Scratch {
 public:
  static absl::StatusOr<std::unique_ptr<Scratch>> Make();
  ~Scratch();
  const std::string& path() const { return path_; }

 private:
  explicit Scratch(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_BENCH_CHILD_H_
