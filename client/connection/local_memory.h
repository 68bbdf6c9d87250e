// A client's local session. It opens when somebody wants the first buffer, and again after it
// ended.
//
// Thread-safe. A server that offers none, or is on another host, costs one question in a while.
#ifndef KVSTOW_CLIENT_CONNECTION_LOCAL_MEMORY_H_
#define KVSTOW_CLIENT_CONNECTION_LOCAL_MEMORY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "client/connection/local_session.h"
#include "client/page_buffer.h"

namespace kvstow {

class LocalMemory {
 public:
  // Asks the server where to open a session. Blocks.
  using Ask = std::function<absl::StatusOr<v1::OpenLocalResponse>()>;
  struct Options {
    uint64_t bytes = 0;  // most shared memory; 0 = no buffer is shared
    Duration timeout;    // of each step: the welcome, the GPU's memory, an allocation
    std::shared_ptr<DeviceSharing> gpu;  // null = none
    uint64_t gpu_bytes = 0;
  };
  LocalMemory(Options options, Ask ask) : options_(std::move(options)), ask_(std::move(ask)) {}

  // Returns a shared buffer where possible, else one of the process's own memory. Blocks for the
  // question and for at most `timeout` in each step.
  std::unique_ptr<PageBuffer> NewBuffer(size_t bytes);
  // Returns the open session, or null.
  std::shared_ptr<LocalSession> session() const;
  // Does the same, but opens a session when there is none. Blocks.
  std::shared_ptr<LocalSession> OpenSession();
  // Ends the session and opens none afterwards.
  void Close();

 private:
  const Options options_;
  const Ask ask_;
  mutable Mutex mu_;
  CondVar opened_;
  std::shared_ptr<LocalSession> session_ KVSTOW_GUARDED_BY(mu_);
  bool opening_ KVSTOW_GUARDED_BY(mu_) = false;  // by one thread, for all
  bool closed_ KVSTOW_GUARDED_BY(mu_) = false;
  Time not_before_ KVSTOW_GUARDED_BY(mu_);  // after an attempt that failed
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONNECTION_LOCAL_MEMORY_H_
