// kvstowd: the server. See --help.
#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <span>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/log.h"
#include "service/fitting/fit_process.h"
#include "service/ops/cleared_memory.h"
#include "service/ops/config.h"
#include "service/ops/notify.h"
#include "service/server.h"

// Read by jemalloc at start: memory that is not used goes back to the system within a minute,
// without a call to free. Sooner, and blocks of pages would be faulted anew after every pause
// (docs/decisions/0010-jemalloc-in-kvstowd.md).
extern "C" {
const char* malloc_conf = "background_thread:true,dirty_decay_ms:60000";
}

namespace kvstow {
namespace {

constexpr int kFailed = 1, kWrongUse = 2;

int Complain(const absl::Status& status) {
  std::fprintf(stderr, "kvstowd: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? kWrongUse : kFailed;
}

// What gRPC complains of goes to our log, once in a while: any client can make a handshake fail.
void LogOfGrpc(gpr_log_func_args* args) {
  static std::atomic<Time> next{Time()};
  if (args->severity != GPR_LOG_SEVERITY_ERROR) return;
  const Time now = Clock::Real().Now();
  Time after = next;
  if (now < after || !next.compare_exchange_strong(after, now + std::chrono::seconds(10))) return;
  Log().warn("gRPC: {}", args->message);
}

int Run(char** argv, std::span<const char* const> args) {
  const auto command = ParseCommandLine(
      args, [](const char* name) { return std::getenv(name); },
      absl::StrCat("kvstowd ", Version()));
  if (!command.ok()) return Complain(command.status());
  if (!command->print.empty()) {
    std::fputs(command->print.c_str(), stdout);
    return 0;
  }
  const Config& config = command->config;
  const absl::Status cleared =
      config.master_key.empty() ? absl::OkStatus() : ClearFreedMemory(argv);
  if (const absl::Status s = SetUpLog(config.log_level, config.log_format); !s.ok()) {
    return Complain(s);
  }

  // Every thread inherits this mask, so that the signals wait for sigwait() below.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  // gRPC's mutexes; a library built with assertions would look for cycles at every lock.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // A client that sends nonsense gets an error; it must not fill our log.
  google::protobuf::SetLogHandler(nullptr);
  gpr_set_log_function(LogOfGrpc);

  Log().info("kvstowd {} with {}", Version(),
             absl::StrJoin(LibraryVersions(), ", ", absl::PairFormatter(" ")));
  for (const auto& [name, value] : Describe(config)) Log().info("config {}={}", name, value);
  if (!cleared.ok()) Log().warn("freed memory is not cleared: {}", cleared.ToString());

  ServerOptions options;
  options.fit_program = "/proc/self/exe";
  auto server = Server::Start(config, options);
  if (!server.ok()) return Complain(server.status());
  NotifySystemd("READY=1");

  int signal_number = 0;
  while (sigwait(&signals, &signal_number) == 0 && signal_number == SIGHUP) {
    (void)(*server)->Reload();  // says in the log how it went
  }
  Log().info("stopping: signal {}", signal_number);
  NotifySystemd("STOPPING=1");
  // A second signal ends the process at once; but not a reload that comes too late.
  signal(SIGHUP, SIG_IGN);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  const absl::Status stopped = (*server)->Stop();
  server->reset();
  Log().info("stopped");
  return stopped.ok() ? 0 : kFailed;
}

}  // namespace
}  // namespace kvstow

int main(int argc, char** argv) {
  uint64_t fit_bytes = 0;
  if (argc == 3 && absl::string_view(argv[1]) == kvstow::kFitArgument &&
      absl::SimpleAtoi(argv[2], &fit_bytes)) {
    return kvstow::FitMain(fit_bytes);
  }
  return kvstow::Run(argv, {argv + 1, static_cast<size_t>(argc > 0 ? argc - 1 : 0)});
}
