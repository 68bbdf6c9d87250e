// Starts a thread where the system may refuse one.
//
// std::thread throws then (a limit on tasks, no memory for a stack), and a thread that lets the
// exception go ends the process. What starts threads while it serves asks here.
#ifndef KVSTOW_BASE_THREAD_H_
#define KVSTOW_BASE_THREAD_H_

#include <functional>
#include <thread>

#include "absl/status/statusor.h"

namespace kvstow {

// `name` (at most 15 bytes) shows in tools such as top. RESOURCE_EXHAUSTED when no thread can be
// started; `run` is then gone.
absl::StatusOr<std::thread> StartThread(const char* name, std::function<void()> run);

}  // namespace kvstow

#endif  // KVSTOW_BASE_THREAD_H_
