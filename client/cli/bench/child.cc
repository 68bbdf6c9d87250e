#include "client/cli/bench/child.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
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
#include "client/cli/text.h"

extern char** environ;

namespace kvstow::cli {

absl::StatusOr<std::unique_ptr<Child>> Child::Start(const std::vector<std::string>& argv,
                                                    const std::string& log_path) {
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log_path.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error == ENOENT) return absl::NotFoundError(absl::StrCat(argv[0], " is not installed"));
  if (error != 0)
    return absl::InternalError(absl::StrCat("starting ", argv[0], ": ", std::strerror(error)));
  return std::unique_ptr<Child>(new Child(pid));
}

Child::~Child() {
  kill(pid_, SIGTERM);
  const Time start = Clock::Real().Now();
  while (waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (SecondsSince(start) > 10) kill(pid_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

double Child::CpuSeconds() const {
  std::ifstream file(absl::StrCat("/proc/", pid_, "/stat"));
  std::stringstream text;
  text << file.rdbuf();
  // The name in brackets may hold blanks; behind it utime and stime are fields 12 and 13.
  const std::string stat = text.str();
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
