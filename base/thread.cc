#include "base/thread.h"

#include <pthread.h>

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvstow {

absl::StatusOr<std::thread> StartThread(const char* name, std::function<void()> run) {
  try {
    std::thread thread(std::move(run));
    pthread_setname_np(thread.native_handle(), name);
    return thread;
  } catch (const std::system_error& e) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no thread can be started (", e.what(), "): is there a limit on tasks?"));
  }
}

}  // namespace kvstow
