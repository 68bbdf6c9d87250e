// A client's local session, opened when the first buffer is wanted and again after it ended.
//
// Thread-safe. A server that offers none, or is on another host, costs one question in a while.
#ifndef KVSTOW_CLIENT_LOCAL_MEMORY_H_
#define KVSTOW_CLIENT_LOCAL_MEMORY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "client/local_session.h"
#include "client/page_buffer.h"

namespace kvstow {

class LocalMemory {
 public:
  // Asks the server where sessions are opened. Blocks.
  using Ask = std::function<absl::StatusOr<v1::OpenLocalResponse>()>;
  struct Options {
    uint64_t bytes = 0;  // of shared memory at most; 0 = no buffer is shared
    Duration timeout;
    std::shared_ptr<DeviceSharing> gpu;  // null = none
    uint64_t gpu_bytes = 0;
  };
  explicit LocalMemory(Options options) : options_(std::move(options)) {}

  // Shared when it can be, else of the process's own memory. Blocks, within `timeout`.
  std::unique_ptr<PageBuffer> NewBuffer(size_t bytes, const Ask& ask);
  // The open session, or null.
  std::shared_ptr<LocalSession> session() const;
  // The same, but opens one when there is none. Blocks.
  std::shared_ptr<LocalSession> OpenSession(const Ask& ask);
  // Ends the session; none is opened afterwards.
  void Close();

 private:
  const Options options_;
  mutable Mutex mu_;
  CondVar opened_;
  std::shared_ptr<LocalSession> session_ KVSTOW_GUARDED_BY(mu_);
  bool opening_ KVSTOW_GUARDED_BY(mu_) = false;  // by one thread, for all
  bool closed_ KVSTOW_GUARDED_BY(mu_) = false;
  Time not_before_ KVSTOW_GUARDED_BY(mu_);  // after an attempt that failed
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_LOCAL_MEMORY_H_
