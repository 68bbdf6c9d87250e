// A client's direct connections (proto/kvstow/v1/direct.proto), each with a thread of its own.
//
// No get or put ever waits for a connection. One that finds none idle goes over a stream, and the
// pool opens one more in the background for later calls. So a server that offers none, or a port
// where nobody answers, costs no call anything. The pool closes a connection that nobody used for a
// while. Thread-safe.
#ifndef KVSTOW_CLIENT_CONNECTION_DIRECT_POOL_H_
#define KVSTOW_CLIENT_CONNECTION_DIRECT_POOL_H_

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
class TlsContext;

class DirectPool {
 public:
  // Asks the server for its port, and for a ticket when it wants one of each connection. Blocks for
  // a moment, on a thread of the pool.
  struct Offer {
    int port = 0;
    std::string ticket;  // "" = none
  };
  using Ask = std::function<absl::StatusOr<Offer>()>;
  // `address` is the server's. Any address but HOST:PORT means no connections, as does `most` = 0.
  // Without `tls` connections are plain.
  DirectPool(const std::string& address, size_t most, std::shared_ptr<TlsContext> tls, Ask ask);
  ~DirectPool();  // joins it

  // The end of a job. The pool closes the connection after an error. `then` runs on the
  // connection's thread, once the connection may be taken again, and must not block.
  struct Outcome {
    absl::Status status;
    std::function<void()> then;
  };
  using Job = std::function<Outcome(const DirectSocket& socket)>;

  // Take returns a connection that was idle, or null. The caller must give it a job.
  class Connection;
  Connection* Take();
  // Begins a job at once, on the connection's thread.
  void Start(Connection* connection, Job job);
  // Runs `use` to the end on this thread, in place of a job. For work that takes less time than
  // waking another thread.
  absl::Status RunHere(Connection* connection,
                       absl::FunctionRef<absl::Status(const DirectSocket& socket)> use);

  // Opens a connection for later calls, unless there is one, and waits a moment for it.
  void Warm();
  // Hangs up on all connections. The pool opens none afterwards.
  void Close();
  // Does the same, and waits for what runs.
  void Join();

 private:
  void Serve(Connection* connection);
  absl::StatusOr<DirectSocket> Open();
  Job NextJob(Connection* connection);
  void SetState(Connection* connection, bool idle);
  void Reap() KVSTOW_REQUIRES(mu_);
  void OpenOneMore() KVSTOW_REQUIRES(mu_);

  const std::string host_;
  const size_t most_;
  const std::shared_ptr<TlsContext> tls_;
  const Ask ask_;
  Mutex mu_;
  CondVar opened_;  // a connection opened, or failed to
  std::list<std::unique_ptr<Connection>> connections_ KVSTOW_GUARDED_BY(mu_);
  Time not_before_ KVSTOW_GUARDED_BY(mu_);  // after an attempt that failed
  bool closed_ KVSTOW_GUARDED_BY(mu_) = false;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONNECTION_DIRECT_POOL_H_
