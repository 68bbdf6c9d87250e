// Local sessions: workers on this host share memory with the server (proto/kvstow/v1/local.proto).
//
// Listens on a UNIX socket. A session is a connection of a worker that runs as the server's user
// (or root) and shows a token that OpenLocal gave; it is the caller of that OpenLocal. The server
// makes the session's memory, out of one budget for all sessions; memory of the GPU too, where both
// run on the same one. A few threads take its requests from the socket in turn, and each finishes
// what it took: handing a page over to another thread would take as long as copying it. A worker
// that hangs up, or dies, ends its session. Its slots go with it, and its memory when nothing works
// on it any more. A worker that breaks the rules, or leaves its answers unread for long, ends its
// session too. Only threads of its own session wait for it. A connection has a few seconds to begin
// its session; until then it gives way to the next at the limit.
//
// Thread-safe. The destructor hangs up on all and waits for work under way.
#ifndef KVSTOW_SERVICE_TRANSPORTS_LOCAL_SESSIONS_H_
#define KVSTOW_SERVICE_TRANSPORTS_LOCAL_SESSIONS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "proto/wire/local_socket.h"
#include "service/access/tickets.h"
#include "service/transports/accepted_connections.h"
#include "service/transports/local_requests.h"

namespace kvstow {

struct LocalOptions {
  std::string socket;  // path
  uint64_t bytes = 0;  // of memory, over all sessions
  size_t max_sessions = 64;
  Duration hello_time = std::chrono::seconds(5);   // for a connection to begin
  Duration token_life = std::chrono::seconds(10);  // as OpenLocalResponse says
  Duration patience = std::chrono::seconds(10);    // for a worker to read its answers
};

class LocalSessions {
 public:
  // Fails with FAILED_PRECONDITION or UNAVAILABLE when it cannot listen on the socket.
  static absl::StatusOr<std::unique_ptr<LocalSessions>> Start(const LocalOptions& options,
                                                              LocalParts parts);
  ~LocalSessions();

  const std::string& socket() const { return options_.socket; }
  std::string NewToken(const CallerPtr& caller) { return tokens_.New(caller); }
  // Hangs up on the sessions whose caller the access file does not have any more.
  void HangUpOnStrangers() const;
  size_t sessions() const;
  uint64_t bytes() const;    // of their memory
  uint64_t refused() const;  // connections, see AcceptedConnections

 private:
  class Session;
  LocalSessions(const LocalOptions& options, LocalParts parts, LocalSocket socket);
  uint64_t TakeBytes(uint64_t wanted);
  void GiveBytes(uint64_t bytes);
  std::shared_ptr<SharedDeviceMemory> ShareGpu(const v1::LocalHello& hello,
                                               v1::LocalWelcome& welcome);

  const LocalOptions options_;
  LocalParts parts_;
  Tickets tokens_;
  mutable Mutex mu_;
  uint64_t bytes_ KVSTOW_GUARDED_BY(mu_) = 0;
  AcceptedConnections<LocalSocket, Session> sessions_;  // last: they use the others
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_TRANSPORTS_LOCAL_SESSIONS_H_
