#include "service/fitting/fit_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/descriptor.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "service/fitting/fit.h"

namespace kvstow {
namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(20);
constexpr int kLowestPriority = 19;
constexpr int kDone = 0, kFailed = 1;

absl::Status Failed(absl::string_view what) {
  return absl::UnavailableError(
      absl::StrCat("the process of a fit: ", what, ": ", std::strerror(errno)));
}

// Reads a file from its begin.
absl::StatusOr<std::string> ReadAll(int file) {
  struct stat facts;
  if (fstat(file, &facts) != 0) return Failed("fstat");
  std::string out(static_cast<size_t>(facts.st_size), '\0');
  for (size_t at = 0; at < out.size();) {
    const ssize_t n = pread(file, out.data() + at, out.size() - at, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Failed("read");
    at += static_cast<size_t>(n);
  }
  return out;
}

// Starts the program with these files as its standard input and output, and no others of ours. It
// gets no environment, and memory_bytes as an argument.
absl::StatusOr<pid_t> Spawn(const std::string& program, uint64_t memory_bytes, int in, int out) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
  posix_spawnattr_init(&attributes);
  // A stop of the server comes to its whole group. The server itself then ends the process.
  sigset_t stops, all;
  sigemptyset(&stops);
  for (const int stop : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&stops, stop);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &stops);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::string name = program, verb = kFitArgument, memory = absl::StrCat(memory_bytes);
  char* const arguments[] = {name.data(), verb.data(), memory.data(), nullptr};
  char* const environment[] = {nullptr};
  pid_t pid = 0;
  errno = posix_spawn(&pid, program.c_str(), &files, &attributes, arguments, environment);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (errno != 0) return Failed(program);
  return pid;
}

// Waits for the process, and returns its wait status. CANCELLED: it was killed, for `stop`.
absl::StatusOr<int> Wait(pid_t pid, const std::function<bool()>& stop) {
  for (;;) {
    int status = 0;
    const pid_t ended = waitpid(pid, &status, WNOHANG);
    if (ended == pid) return status;
    if (ended < 0 && errno != EINTR) return Failed("waitpid");
    if (stop()) {
      kill(pid, SIGKILL);
      while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
      }
      return absl::CancelledError("the server ends");
    }
    std::this_thread::sleep_for(kLookEvery);
  }
}

// The job that comes on standard input. Its pages are gone when this returns.
absl::StatusOr<FitOutcome> DoJob() {
  KVSTOW_ASSIGN_OR_RETURN(std::string read, ReadAll(STDIN_FILENO));
  KVSTOW_ASSIGN_OR_RETURN(const FitJob job, ParseFitJob(SharedBytes::Take(std::move(read))));
  return RunFit(job);
}

}  // namespace

absl::StatusOr<FitOutcome> RunFitProcess(const FitJob& job, const std::string& program,
                                         uint64_t memory_bytes, const std::function<bool()>& stop) {
  const Descriptor in(memfd_create("kvstow fit", MFD_CLOEXEC));
  const Descriptor out(memfd_create("kvstow fitted", MFD_CLOEXEC));
  if (in.get() < 0 || out.get() < 0) return Failed("memfd_create");
  if (!WriteFromBegin(in.get(), AsBytes(SerializeFitJob(job)))) return Failed("write");
  KVSTOW_ASSIGN_OR_RETURN(const pid_t pid, Spawn(program, memory_bytes, in.get(), out.get()));
  KVSTOW_ASSIGN_OR_RETURN(const int status, Wait(pid, stop));
  KVSTOW_ASSIGN_OR_RETURN(std::string said, ReadAll(out.get()));
  if (WIFEXITED(status) && WEXITSTATUS(status) == kDone) {
    return ParseFitOutcome(SharedBytes::Take(std::move(said)));
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == kFailed && !said.empty()) {
    return absl::InvalidArgumentError(said);
  }
  if (!WIFSIGNALED(status)) return absl::UnavailableError("the process of a fit ended early");
  const int signal = WTERMSIG(status);
  return absl::UnavailableError(
      absl::StrCat("the process of a fit was ended by signal ", signal,
                   signal == SIGKILL ? ", maybe for want of memory" : ""));
}

int FitMain(uint64_t memory_bytes) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_DUMPABLE, 0);  // a core dump would hold pages in the clear
  setpriority(PRIO_PROCESS, 0, kLowestPriority);
  if (memory_bytes > 0) {
    const rlimit limit{memory_bytes, memory_bytes};
    setrlimit(RLIMIT_DATA, &limit);
  }
  std::string said;
  int code = kFailed;
  try {
    const absl::StatusOr<FitOutcome> outcome = DoJob();
    said = outcome.ok() ? SerializeFitOutcome(*outcome) : std::string(outcome.status().message());
    code = outcome.ok() ? kDone : kFailed;
  } catch (const std::bad_alloc&) {
    said = "it needs more memory than it may have";
  }
  return WriteFromBegin(STDOUT_FILENO, AsBytes(said)) ? code : kFailed;
}

}  // namespace kvstow
