// A client's direct connections (proto/kvstow/v1/direct.proto), each with a thread of its own.
//
// No get or put ever waits for a connection: one that finds none idle goes over a stream, and one
// more is opened for the calls that follow, in the background. So a server that offers none, or a
// port that nobody answers at, costs no call anything. A connection that nobody used for a while is
// closed. Thread-safe.
#ifndef KVSTOW_CLIENT_DIRECT_POOL_H_
#define KVSTOW_CLIENT_DIRECT_POOL_H_

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace kvstow {

class DirectSocket;

class DirectPool {
 public:
  // Asks the server for its port. Blocks for a moment, on a thread of the pool.
  using Ask = std::function<absl::StatusOr<int>()>;
  // `address` is the server's; anything but HOST:PORT means no connections, as `most` = 0 does.
  DirectPool(const std::string& address, size_t most, Ask ask);
  ~DirectPool();  // closes it, and waits for what runs

  // What to do with a connection, which is closed after an error. `then` runs once the connection
  // may be taken again, on its thread, and must not block.
  struct Outcome {
    absl::Status status;
    std::function<void()> then;
  };
  using Job = std::function<Outcome(const DirectSocket& socket)>;

  // One that was idle, or null. Whoever takes it must give it a job.
  class Connection;
  Connection* Take();
  // Begins at once, on the connection's thread.
  void Start(Connection* connection, Job job);
  // In place of a job: on this thread, to the end. For what takes less time than waking another.
  absl::Status RunHere(Connection* connection,
                       absl::FunctionRef<absl::Status(const DirectSocket& socket)> use);

  // Opens a connection for calls to come, unless there is one, and waits a moment for it.
  void Warm();
  // Hangs up on all; nothing is opened afterwards.
  void Close();

 private:
  void Serve(Connection* connection);
  absl::StatusOr<DirectSocket> Open();
  Job NextJob(Connection* connection);
  void SetState(Connection* connection, bool idle);
  void Reap() KVSTOW_REQUIRES(mu_);
  void OpenOneMore() KVSTOW_REQUIRES(mu_);

  const std::string host_;
  const size_t most_;
  const Ask ask_;
  Mutex mu_;
  CondVar opened_;  // or failed to
  std::list<std::unique_ptr<Connection>> connections_ KVSTOW_GUARDED_BY(mu_);
  Time not_before_ KVSTOW_GUARDED_BY(mu_);  // after an attempt that failed
  bool closed_ KVSTOW_GUARDED_BY(mu_) = false;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_DIRECT_POOL_H_
