// kvstowd as a process of its own: started as users start it, stopped by signals.
#ifndef KVSTOW_TESTS_INTEGRATION_SERVER_PROCESS_H_
#define KVSTOW_TESTS_INTEGRATION_SERVER_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace kvstow::testing {

using Environment = std::vector<std::pair<std::string, std::string>>;

class ServerProcess {
 public:
  // Runs build/bin/kvstowd with `args` and with `environment` (no other KVSTOW_ variables).
  ServerProcess(const std::vector<std::string>& args, const Environment& environment);
  ~ServerProcess();  // kills it
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  // Reads its log until it serves; false when it ended, or 30 seconds passed, before that.
  bool WaitUntilServing();
  // As the log said them, once it serves.
  const std::string& address() const { return address_; }
  const std::string& http_address() const { return http_address_; }

  pid_t pid() const { return pid_; }
  void Signal(int number);  // after SIGSTOP, all of it has stopped
  // Waits until it ends and returns its exit code, or minus the signal that ended it.
  int Wait();
  // All that it wrote, to both outputs; complete after Wait().
  const std::string& log() const { return log_; }

 private:
  bool ReadMore(int timeout_ms);

  pid_t pid_ = -1;
  int output_ = -1;
  std::string log_, address_, http_address_;
};

// A folder that goes with the object.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_INTEGRATION_SERVER_PROCESS_H_
