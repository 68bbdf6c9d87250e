// The connections that a socket accepts. A thread waits for them, and joins ended ones when the
// next one comes.
//
// When the limit is reached, the connection that has been idle longest gives way, if that is long
// enough; else the newcomer is hung up on. A newcomer whose thread the system refuses to start is
// also hung up on; the others go on. The class counts both, and logs them once in a while.
//
// A Socket has Accept and HangUp. A Connection has Start, HangUp, ended(), and idle_since(). Start
// starts threads of the connection's own, which its destructor joins. Any thread may call
// idle_since(): it returns since when the connection has been idle, and no value when it must not
// give way. Thread-safe. The destructor hangs up on all and waits for work under way.
#ifndef KVSTOW_SERVICE_TRANSPORTS_ACCEPTED_CONNECTIONS_H_
#define KVSTOW_SERVICE_TRANSPORTS_ACCEPTED_CONNECTIONS_H_

#include <algorithm>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"

namespace kvstow {

struct AcceptLimits {
  const char* listener;  // its name in the log
  size_t most = 0;
  Duration idle;  // from which on a connection gives way to another
};

template <typename Socket, typename Connection>
class AcceptedConnections {
 public:
  using Make = std::function<std::unique_ptr<Connection>(Socket socket)>;

  // Listens on `socket`. `make` runs under the lock and must not block.
  AcceptedConnections(Socket socket, AcceptLimits limits, Make make)
      : socket_(std::move(socket)),
        limits_(limits),
        make_(std::move(make)),
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
  template <typename Use>
  void ForEach(const Use& use) const {
    MutexLock lock(mu_);
    for (const auto& connection : connections_) use(*connection);
  }
  // Returns the connections that were hung up on because there were too many, or no thread for
  // them.
  uint64_t refused() const {
    MutexLock lock(mu_);
    return refused_;
  }

 private:
  static constexpr Duration kAcceptAgain = std::chrono::milliseconds(100);  // after it failed
  static constexpr Duration kComplainAgain = std::chrono::seconds(10);
  using List = std::list<std::unique_ptr<Connection>>;

  void AcceptAll() {
    for (;;) {
      auto socket = socket_.Accept();
      List gone;  // which join outside the lock
      MutexLock lock(mu_);
      if (stopping_) return;
      const auto ended = std::partition(connections_.begin(), connections_.end(),
                                        [](const auto& c) { return !c->ended(); });
      gone.splice(gone.end(), connections_, ended, connections_.end());
      if (!socket.ok()) {
        Complain(socket.status());
        stop_.WaitFor(mu_, kAcceptAgain);
        if (stopping_) return;
      } else if (const absl::Status s = Take(*std::move(socket)); !s.ok()) {
        ++refused_;
        Complain(s);
      }
    }
  }

  absl::Status Take(Socket socket) KVSTOW_REQUIRES(mu_) {
    if (connections_.size() >= limits_.most && !MakeRoom()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("there are ", limits_.most, " connections, and none is idle"));
    }
    std::unique_ptr<Connection> added = make_(std::move(socket));
    if (absl::Status s = added->Start(); !s.ok()) return s;
    connections_.push_back(std::move(added));
    return absl::OkStatus();
  }

  // Hangs up on the connection that has been idle longest. Its thread ends in a moment, and is
  // joined with the next connection. No more than as many again as the limit can be on their way
  // out.
  bool MakeRoom() KVSTOW_REQUIRES(mu_) {
    if (connections_.size() >= 2 * limits_.most) return false;
    Connection* longest = nullptr;
    Time since = Clock::Real().Now() - limits_.idle;
    for (const auto& connection : connections_) {
      const std::optional<Time> idle = connection->idle_since();
      if (!idle.has_value() || *idle > since) continue;
      longest = connection.get();
      since = *idle;
    }
    if (longest != nullptr) longest->HangUp();
    return longest != nullptr;
  }

  void Complain(const absl::Status& why) KVSTOW_REQUIRES(mu_) {
    const Time now = Clock::Real().Now();
    if (now < complain_after_) return;
    complain_after_ = now + kComplainAgain;
    Log().warn("a {} connection was refused, {} so far: {}", limits_.listener, refused_,
               std::string(why.message()));
  }

  const Socket socket_;
  const AcceptLimits limits_;
  const Make make_;
  mutable Mutex mu_;
  List connections_ KVSTOW_GUARDED_BY(mu_);
  uint64_t refused_ KVSTOW_GUARDED_BY(mu_) = 0;
  Time complain_after_ KVSTOW_GUARDED_BY(mu_);
  bool stopping_ KVSTOW_GUARDED_BY(mu_) = false;
  CondVar stop_;
  std::thread accepting_;  // last: it uses the others
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_TRANSPORTS_ACCEPTED_CONNECTIONS_H_
