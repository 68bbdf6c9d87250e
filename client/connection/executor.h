// One thread that runs functions, now or later: a client's callbacks and its next attempts.
//
// Callbacks never run on gRPC's threads, so that user code may call the client again. Functions run
// one after the other in the order of their times, and must not block. When the system refuses the
// thread (status()), they run at once, on the thread that hands them in. Thread-safe.
#ifndef KVSTOW_CLIENT_CONNECTION_EXECUTOR_H_
#define KVSTOW_CLIENT_CONNECTION_EXECUTOR_H_

#include <functional>
#include <map>
#include <thread>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace kvstow {

class Executor {
 public:
  Executor();
  // Runs the functions that are left, and joins. Must not run on its own thread.
  ~Executor();

  // Returns RESOURCE_EXHAUSTED when there is no thread.
  const absl::Status& status() const { return status_; }
  void Run(std::function<void()> fn) { RunAfter(Duration(0), std::move(fn)); }
  void RunAfter(Duration delay, std::function<void()> fn);
  // Ends all waits: functions that wait for their time run at once, and so do later ones.
  void Hurry();

 private:
  void Loop();

  Mutex mu_;
  CondVar changed_;
  std::multimap<Time, std::function<void()>> queue_ KVSTOW_GUARDED_BY(mu_);
  bool hurry_ KVSTOW_GUARDED_BY(mu_) = false;
  bool stop_ KVSTOW_GUARDED_BY(mu_) = false;
  absl::Status status_;
  std::thread thread_;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONNECTION_EXECUTOR_H_
