#include "client/connection/executor.h"

#include <utility>

#include "base/thread.h"

namespace kvstow {

Executor::Executor() {
  auto thread = StartThread("kvstow-calls", [this] { Loop(); });
  status_ = thread.status();
  if (thread.ok()) thread_ = *std::move(thread);
}

Executor::~Executor() {
  {
    MutexLock lock(mu_);
    hurry_ = stop_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

// Notifies under the lock: `fn` may let the owner destroy this executor.
void Executor::RunAfter(Duration delay, std::function<void()> fn) {
  if (!status_.ok()) return fn();
  MutexLock lock(mu_);
  queue_.emplace(Clock::Real().Now() + delay, std::move(fn));
  changed_.NotifyAll();
}

void Executor::Hurry() {
  MutexLock lock(mu_);
  hurry_ = true;
  changed_.NotifyAll();
}

void Executor::Loop() {
  for (;;) {
    std::function<void()> fn;
    {
      MutexLock lock(mu_);
      while (!fn) {
        if (queue_.empty()) {
          if (stop_) return;
          changed_.Wait(mu_);
          continue;
        }
        const auto first = queue_.begin();
        const Duration wait = hurry_ ? Duration(0) : first->first - Clock::Real().Now();
        if (wait > Duration(0)) {
          changed_.WaitFor(mu_, wait);
          continue;
        }
        fn = std::move(first->second);
        queue_.erase(first);
      }
    }
    fn();
  }
}

}  // namespace kvstow
