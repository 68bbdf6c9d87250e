// Direct connections: workers fetch and put pages beside gRPC, over TCP, plain or with TLS
// (proto/kvstow/v1/direct.proto).
//
// Each connection has a thread, which takes a request, serves it to the end and waits for the next:
// handing a page to another thread would take as long as copying it. The server hangs up on a
// connection that asked for nothing for a while, and, at the limit, on the one that has been idle
// longest (accepted_connections.h). Workers take that as usual: they open another, or use streams.
// Without identities, a client that reaches the port can do what gRPC's port lets it do, no more
// and no less. With them, a connection is the caller that got its ticket over gRPC
// (direct_requests.h), and has a few seconds to show it.
//
// With TLS, a connection makes its handshake on its own thread, within 5 s. It gives way to others
// at once until that is done, and until it has shown its ticket. So peers that stall there keep
// nobody out.
//
// Thread-safe. The destructor hangs up on all and waits for work under way.
#ifndef KVSTOW_SERVICE_TRANSPORTS_DIRECT_SERVER_H_
#define KVSTOW_SERVICE_TRANSPORTS_DIRECT_SERVER_H_

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "proto/wire/direct_socket.h"
#include "proto/wire/tls_context.h"
#include "service/transports/accepted_connections.h"
#include "service/transports/direct_requests.h"

namespace kvstow {

struct DirectOptions {
  std::string host;
  int port = 0;  // 0 = any that is free
  size_t max_connections = 128;
  Duration patience = std::chrono::seconds(30);     // see DirectRequests
  Duration idle_time = std::chrono::minutes(5);     // until a connection is hung up on
  Duration hello_time = std::chrono::seconds(5);    // by when it must have shown its ticket
  Duration ticket_life = std::chrono::seconds(30);  // as OpenDirectResponse says
  std::shared_ptr<TlsContext> tls = nullptr;        // null: none
};

class DirectServer {
 public:
  // Fails with UNAVAILABLE when the port cannot be had.
  static absl::StatusOr<std::unique_ptr<DirectServer>> Start(const DirectOptions& options,
                                                             DirectParts parts);
  ~DirectServer();

  int port() const { return port_; }
  std::string NewTicket(const CallerPtr& caller) { return tickets_.New(caller); }
  // Hangs up on the connections whose caller the access file does not have any more.
  void HangUpOnStrangers() const;
  // Hangs up on the connections whose peer took nothing of its page for a second. The server calls
  // it while others wait for the bytes that they hold.
  void HangUpOnStuck() const;
  size_t connections() const;
  uint64_t refused() const;  // see AcceptedConnections

 private:
  class Connection;
  DirectServer(const DirectOptions& options, DirectParts parts, DirectSocket socket);
  void NoteFailedHandshake(const absl::Status& why);

  const DirectOptions options_;
  Tickets tickets_;
  DirectParts parts_;
  const int port_;
  std::atomic<Time> complain_after_{Time()};
  AcceptedConnections<DirectSocket, Connection> connections_;  // last: they use the others
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_TRANSPORTS_DIRECT_SERVER_H_
