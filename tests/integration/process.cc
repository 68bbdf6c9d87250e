#include "tests/integration/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>

#include "tests/integration/server_process.h"
#include "tests/restartable_address.h"

extern char** environ;

namespace kvstow {
namespace {

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

std::vector<std::string> Environment(const std::vector<std::string>& added) {
  std::vector<std::string> out = added;
  for (char** e = environ; *e != nullptr; ++e) {
    if (std::string_view(*e).substr(0, 7) != "KVSTOW_") out.push_back(*e);
  }
  return out;
}

int ExitCode(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TempDir::TempDir() {
  std::string name = ::testing::TempDir() + "kvstow-XXXXXX";
  EXPECT_NE(mkdtemp(name.data()), nullptr);
  dir_ = name;
}

TempDir::~TempDir() { std::filesystem::remove_all(dir_); }

Finished RunProgram(const std::string& program, const std::vector<std::string>& arguments,
                    const std::vector<std::string>& environment) {
  const TempDir dir;
  const std::string out = dir.path("out"), err = dir.path("err");
  std::vector<std::string> argv = {program}, env = Environment(environment);
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, out.c_str(), O_WRONLY | O_CREAT, 0600);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT, 0600);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, program.c_str(), &files, nullptr, Pointers(argv).data(),
                                Pointers(env).data());
  posix_spawn_file_actions_destroy(&files);
  EXPECT_EQ(error, 0) << "cannot run " << program;
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return {ExitCode(status), ReadFile(out), ReadFile(err)};
}

struct Daemon::Process {
  explicit Process(const std::vector<std::string>& arguments) : server(arguments, {}) {}
  testing::ServerProcess server;
};

Daemon::Daemon(std::string listen, std::vector<std::string> arguments)
    : address_(listen == "127.0.0.1:0" ? RestartableAddress() : std::move(listen)),
      arguments_(std::move(arguments)) {
  Start();
}
Daemon::~Daemon() = default;

void Daemon::Start() {
  process_.reset();  // gives the address back
  std::vector<std::string> arguments = {"--listen", address_, "--http-listen", "127.0.0.1:0"};
  arguments.insert(arguments.end(), arguments_.begin(), arguments_.end());
  process_ = std::make_unique<Process>(arguments);
  ASSERT_TRUE(process_->server.WaitUntilServing()) << process_->server.log();
  address_ = process_->server.address();
}

const std::string& Daemon::http_address() const { return process_->server.http_address(); }

pid_t Daemon::pid() const { return process_->server.pid(); }

void Daemon::Signal(int signal) { process_->server.Signal(signal); }

void Daemon::Kill() { process_.reset(); }

int Daemon::Terminate() {
  Signal(SIGTERM);
  return process_->server.Wait();
}

}  // namespace kvstow
