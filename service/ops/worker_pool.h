// A fixed number of threads for work that takes time: encoding, decoding, disk.
//
// gRPC's own threads must never do such work. Submitters bound the queue (so many pages of each
// stream, the cap on streams). Thread-safe. The destructor runs the queue, then joins; nothing may
// be submitted from then on.
#ifndef KVSTOW_SERVICE_OPS_WORKER_POOL_H_
#define KVSTOW_SERVICE_OPS_WORKER_POOL_H_

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace kvstow {

class WorkerPool {
 public:
  // Starts at least one thread. Tools such as top show `name` (at most 15 bytes).
  WorkerPool(const char* name, size_t threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void Submit(std::function<void()> work);
  size_t queued() const;

 private:
  void Loop();

  mutable Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> queue_ KVSTOW_GUARDED_BY(mu_);
  bool stopping_ KVSTOW_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPS_WORKER_POOL_H_
