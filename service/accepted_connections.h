// Connections that a socket accepts: a thread waits for them, those over the limit are hung up on
// at once, and those that ended are joined when the next one comes.
//
// A Socket has Accept and HangUp; a Connection has threads of its own that its destructor joins,
// HangUp, and ended(), all of which any thread may call. Thread-safe. The destructor hangs up on
// all and waits for what is being done.
#ifndef KVSTOW_SERVICE_ACCEPTED_CONNECTIONS_H_
#define KVSTOW_SERVICE_ACCEPTED_CONNECTIONS_H_

#include <algorithm>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"

namespace kvstow {

template <typename Socket, typename Connection>
class AcceptedConnections {
 public:
  using Begin = std::function<std::unique_ptr<Connection>(Socket socket)>;

  // Listens on `socket`. `begin` runs under the lock and must not block.
  AcceptedConnections(Socket socket, size_t most, Begin begin)
      : socket_(std::move(socket)),
        most_(most),
        begin_(std::move(begin)),
        accepting_([this] { AcceptAll(); }) {}
  ~AcceptedConnections() {
    {
      MutexLock lock(mu_);
      stopping_ = true;
      for (const auto& connection : connections_) connection->HangUp();
    }
    stop_.NotifyAll();
    socket_.HangUp();
    accepting_.join();
  }

  template <typename Predicate>
  size_t Count(const Predicate& counts) const {
    MutexLock lock(mu_);
    return std::ranges::count_if(connections_, [&](const auto& c) { return counts(*c); });
  }

 private:
  static constexpr Duration kAcceptAgain = std::chrono::milliseconds(100);  // after it failed
  using List = std::list<std::unique_ptr<Connection>>;

  void AcceptAll() {
    for (;;) {
      auto socket = socket_.Accept();
      List ended;  // which join outside the lock
      MutexLock lock(mu_);
      if (stopping_) return;
      const auto gone = std::partition(connections_.begin(), connections_.end(),
                                       [](const auto& c) { return !c->ended(); });
      ended.splice(ended.end(), connections_, gone, connections_.end());
      if (!socket.ok()) {
        Log().error("{}", std::string(socket.status().message()));
        stop_.WaitFor(mu_, kAcceptAgain);
        if (stopping_) return;
        continue;
      }
      if (connections_.size() < most_) connections_.push_back(begin_(*std::move(socket)));
    }
  }

  const Socket socket_;
  const size_t most_;
  const Begin begin_;
  mutable Mutex mu_;
  List connections_ KVSTOW_GUARDED_BY(mu_);
  bool stopping_ KVSTOW_GUARDED_BY(mu_) = false;
  CondVar stop_;
  std::thread accepting_;  // last: it uses the others
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_ACCEPTED_CONNECTIONS_H_
