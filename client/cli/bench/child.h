// A server that a comparison starts, and stops afterwards.
#ifndef KVSTOW_CLIENT_CLI_COMPARE_CHILD_H_
#define KVSTOW_CLIENT_CLI_COMPARE_CHILD_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace kvstow::cli {

class Child {
 public:
  // Runs `argv`, with the program from PATH. Its output goes into `log_path`. Fails with NOT_FOUND
  // when there is no such program.
  static absl::StatusOr<std::unique_ptr<Child>> Start(const std::vector<std::string>& argv,
                                                      const std::string& log_path);
  ~Child();  // sends SIGTERM, after 10 seconds SIGKILL, and waits for the end
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Returns the CPU time of the process since it began, in user space and in the kernel.
  double CpuSeconds() const;
  // Returns the most memory that it ever had resident; 0 when the kernel does not say.
  uint64_t PeakRssBytes() const;

 private:
  explicit Child(pid_t pid) : pid_(pid) {}
  const pid_t pid_;
};

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

#endif  // KVSTOW_CLIENT_CLI_COMPARE_CHILD_H_
