// Starts a thread where the system may refuse one.
//
// std::thread throws then (a limit on tasks, no memory for a stack), and an exception that leaves a
// thread ends the process. Code that starts threads while the process serves uses this.
#ifndef KVSTOW_BASE_THREAD_H_
#define KVSTOW_BASE_THREAD_H_

#include <functional>
#include <thread>

#include "absl/status/statusor.h"

namespace kvstow {

// `name` (at most 15 bytes) shows in tools such as top. Fails with RESOURCE_EXHAUSTED when the
// system refuses the thread; `run` is then gone.
absl::StatusOr<std::thread> StartThread(const char* name, std::function<void()> run);

}  // namespace kvstow

#endif  // KVSTOW_BASE_THREAD_H_
