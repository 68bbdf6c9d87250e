// The real programs, kvstowd and kvstow, as users run them.
#ifndef KVSTOW_TESTS_INTEGRATION_PROCESS_H_
#define KVSTOW_TESTS_INTEGRATION_PROCESS_H_

#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/client/prompt.h"
#include "tests/paths.h"

namespace kvstow {

// A folder of this test alone; goes with the object.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  std::string path(const std::string& name = "") const { return (dir_ / name).string(); }

 private:
  std::filesystem::path dir_;
};

struct Finished {
  int exit_code = -1;  // 128 + signal when it was killed
  std::string out, err;
};

// Runs a program to its end. `environment` is added to ours.
Finished RunProgram(const std::string& program, const std::vector<std::string>& arguments,
                    const std::vector<std::string>& environment = {});

// build/bin/kvstow.
inline Finished RunKvstow(const std::vector<std::string>& arguments,
                          const std::vector<std::string>& environment = {}) {
  return RunProgram(ProgramPath("kvstow"), arguments, environment);
}

// kvstowd. It serves when the constructor returns, and when Start() does, which restarts it.
class Daemon final : public ServerUnderTest {
 public:
  // `listen`: "127.0.0.1:0" (a free port, which restarts keep) or "unix:PATH".
  Daemon(std::string listen, std::vector<std::string> arguments);
  ~Daemon() override;

  std::string address() const override { return address_; }
  const std::string& http_address() const;
  void Kill() override;  // SIGKILL
  void Start() override;
  void Signal(int signal);  // SIGSTOP, SIGCONT
  int Terminate();          // SIGTERM; its exit code
  pid_t pid() const;        // while it runs

 private:
  struct Process;

  std::string address_;
  const std::vector<std::string> arguments_;
  std::unique_ptr<Process> process_;
};

}  // namespace kvstow

#endif  // KVSTOW_TESTS_INTEGRATION_PROCESS_H_
