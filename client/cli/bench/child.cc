#include "client/cli/bench/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "client/cli/text.h"

namespace kvstow::cli {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// What the forked process does: it becomes the program, or tells through `failed` why not. It may
// call nothing that takes a lock.
[[noreturn]] void Become(char* const* argv, const char* log_path, pid_t parent, int failed) {
  const int in = open("/dev/null", O_RDONLY);
  const int out = open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  const bool ready = in >= 0 && out >= 0 && dup2(in, STDIN_FILENO) >= 0 &&
                     dup2(out, STDOUT_FILENO) >= 0 && dup2(out, STDERR_FILENO) >= 0 &&
                     prctl(PR_SET_PDEATHSIG, SIGTERM) == 0;
  if (ready && getppid() == parent) execvp(argv[0], argv);
  const int error = errno;
  if (write(failed, &error, sizeof(error)) < 0) _exit(126);
  _exit(127);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Child>> Child::Start(const std::vector<std::string>& argv,
                                                    const std::string& log_path) {
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const auto failed = [&](int error) {
    return absl::InternalError(absl::StrCat("starting ", argv[0], ": ", std::strerror(error)));
  };
  int ends[2];  // closed when the program runs; else it brings an error
  if (pipe2(ends, O_CLOEXEC) != 0) return failed(errno);
  const pid_t parent = getpid(), pid = fork();
  if (pid == 0) Become(arguments.data(), log_path.c_str(), parent, ends[1]);
  int error = pid < 0 ? errno : 0;
  close(ends[1]);
  const ssize_t told = pid < 0 ? 0 : read(ends[0], &error, sizeof(error));
  close(ends[0]);
  if (pid < 0) return failed(error);
  if (told <= 0) return std::unique_ptr<Child>(new Child(pid));
  waitpid(pid, nullptr, 0);
  if (error == ENOENT) return absl::NotFoundError(absl::StrCat(argv[0], " is not installed"));
  return failed(error);
}

Child::~Child() {
  if (ended_) return;
  kill(pid_, SIGTERM);
  const Time start = Clock::Real().Now();
  while (waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (SecondsSince(start) > 10) kill(pid_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

int Child::Wait() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  ended_ = true;
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

absl::Status RunToEnd(const std::vector<std::string>& argv, const std::string& log_path) {
  KVSTOW_ASSIGN_OR_RETURN(const std::unique_ptr<Child> child, Child::Start(argv, log_path));
  const int code = child->Wait();
  if (code == 0) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("`", absl::StrJoin(argv, " "), "` ended with ", code, ": ", ReadAll(log_path)));
}

double Child::CpuSeconds() const {
  // The name in brackets may hold blanks; behind it utime and stime are fields 12 and 13.
  const std::string stat = ReadAll(absl::StrCat("/proc/", pid_, "/stat"));
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(stat.substr(name_end + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

uint64_t Child::PeakRssBytes() const {
  std::ifstream file(absl::StrCat("/proc/", pid_, "/status"));
  for (std::string word; file >> word;) {
    uint64_t kib = 0;
    if (word == "VmHWM:" && file >> kib) return kib << 10;
  }
  return 0;
}

double MachineTime::BusySince(const MachineTime& before) const {
  const auto worked = static_cast<double>(busy - before.busy);
  const double all = worked + static_cast<double>(idle - before.idle);
  return all > 0 ? worked / all : 0;
}

MachineTime TimeOfMachine() {
  // cpu  user nice system idle iowait irq softirq steal ...
  std::istringstream fields(ReadAll("/proc/stat"));
  std::string skipped;
  fields >> skipped;
  MachineTime out;
  for (int i = 0; i < 8; ++i) {
    uint64_t ticks = 0;
    fields >> ticks;
    (i == 3 || i == 4 ? out.idle : out.busy) += ticks;
  }
  return out;
}

double OwnCpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

absl::StatusOr<std::unique_ptr<Scratch>> Scratch::Make() {
  std::string path = (std::filesystem::temp_directory_path() / "kvstow-compare-XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr)
    return absl::InternalError(absl::StrCat("making ", path, ": ", std::strerror(errno)));
  return std::unique_ptr<Scratch>(new Scratch(std::move(path)));
}

Scratch::~Scratch() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace kvstow::cli
