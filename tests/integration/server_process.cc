#include "tests/integration/server_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "tests/paths.h"

namespace kvstow::testing {
namespace {

constexpr int kPatienceMs = 30'000;

// `environment` and what this process has, but for KVSTOW_ variables.
std::vector<std::string> FullEnvironment(const Environment& environment) {
  std::vector<std::string> out;
  for (char** e = environ; *e != nullptr; ++e) {
    if (std::strncmp(*e, "KVSTOW_", 7) != 0) out.emplace_back(*e);
  }
  for (const auto& [name, value] : environment) out.push_back(name + "=" + value);
  return out;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// The word after `name` in the last line that has it.
std::string After(const std::string& text, const std::string& name) {
  const size_t at = text.rfind(name);
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size();
  return text.substr(begin, text.find_first_of(" \n\"", begin) - begin);
}

}  // namespace

ServerProcess::ServerProcess(const std::vector<std::string>& args, const Environment& environment) {
  std::vector<std::string> argv = {ProgramPath("kvstowd")};
  argv.insert(argv.end(), args.begin(), args.end());
  std::vector<std::string> env = FullEnvironment(environment);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  if (posix_spawn(&pid_, argv[0].c_str(), &actions, nullptr, Pointers(argv).data(),
                  Pointers(env).data()) != 0) {
    log_ = argv[0] + " cannot be started: build the target kvstowd";
    pid_ = -1;
  }
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  output_ = ends[0];
}

ServerProcess::~ServerProcess() {
  if (pid_ > 0) {
    Signal(SIGKILL);
    Wait();
  }
  if (output_ >= 0) close(output_);
}

bool ServerProcess::ReadMore(int timeout_ms) {
  pollfd p{.fd = output_, .events = POLLIN, .revents = 0};
  if (poll(&p, 1, timeout_ms) <= 0) return false;
  char buffer[4096];
  const ssize_t n = read(output_, buffer, sizeof(buffer));
  if (n > 0) log_.append(buffer, n);
  return n > 0;
}

bool ServerProcess::WaitUntilServing() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  const std::string line = "listening grpc=";
  size_t at = std::string::npos;
  while ((at = log_.find(line)) == std::string::npos || log_.find('\n', at) == std::string::npos) {
    if (std::chrono::steady_clock::now() > end || !ReadMore(kPatienceMs)) return false;
  }
  address_ = After(log_, "grpc=");
  http_address_ = After(log_, "http=");
  return true;
}

void ServerProcess::Signal(int number) {
  if (pid_ <= 0) return;
  kill(pid_, number);
  // Every thread stops at its own time; the last of them is what the parent is told of.
  siginfo_t stopped;
  if (number == SIGSTOP) waitid(P_PID, static_cast<id_t>(pid_), &stopped, WSTOPPED);
}

int ServerProcess::Wait() {
  if (pid_ <= 0) return -1;
  while (ReadMore(kPatienceMs)) {
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TempFolder::TempFolder() {
  path_ = (std::filesystem::temp_directory_path() / "kvstow_test_XXXXXX").string();
  if (mkdtemp(path_.data()) == nullptr) path_.clear();
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace kvstow::testing
