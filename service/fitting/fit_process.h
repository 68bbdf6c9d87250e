// Runs a fit (fit.h) in a process of its own, so that it can neither slow down nor end the server:
// the process has the lowest priority, a limit of memory, and ends when the server does. It takes
// no signals that stop a server: those go to all of its processes.
//
// The job comes on the process's standard input, the outcome goes to its standard output. Both are
// files in memory, which nobody else can open, and the process leaves no core dump: nothing of the
// pages touches the disk.
//
// Thread-safe.
#ifndef KVSTOW_SERVICE_FITTING_FIT_PROCESS_H_
#define KVSTOW_SERVICE_FITTING_FIT_PROCESS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "service/fitting/fit_job.h"

namespace kvstow {

// The first argument of a program that is to be the process. The second is its limit of memory in
// bytes: main() then calls FitMain.
inline constexpr char kFitArgument[] = "fit-worker";

// Starts `program` and waits. Calls `stop` now and then, and kills the process once it says true:
// CANCELLED. Fails with the error of RunFit; with UNAVAILABLE, which says why, when the process did
// not start, or ended by itself.
absl::StatusOr<FitOutcome> RunFitProcess(const FitJob& job, const std::string& program,
                                         uint64_t memory_bytes, const std::function<bool()>& stop);

// Is the process. Returns its exit code.
int FitMain(uint64_t memory_bytes);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_FITTING_FIT_PROCESS_H_
