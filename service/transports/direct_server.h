// Direct connections: workers that fetch and put pages beside gRPC, over plain TCP
// (proto/kvstow/v1/direct.proto).
//
// A thread for each connection, which takes a request, serves it to the end and waits for the next:
// handing a page to another thread would take as long as copying it. One that asked for nothing for
// a while is hung up on; so is, when there are as many as there may be, the one that has been idle
// longest (accepted_connections.h). Workers take that as usual: they open another, or use streams.
// Whoever reaches the port can do what gRPC's port lets them do, no more and no less.
//
// Thread-safe. The destructor hangs up on all and waits for what is being done.
#ifndef KVSTOW_SERVICE_TRANSPORTS_DIRECT_SERVER_H_
#define KVSTOW_SERVICE_TRANSPORTS_DIRECT_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "proto/wire/direct_socket.h"
#include "service/transports/accepted_connections.h"
#include "service/transports/direct_requests.h"

namespace kvstow {

struct DirectOptions {
  std::string host;
  int port = 0;  // 0 = any that is free
  size_t max_connections = 128;
  Duration patience = std::chrono::seconds(30);  // see DirectRequests
  Duration idle_time = std::chrono::minutes(5);  // until a connection is hung up on
};

class DirectServer {
 public:
  // UNAVAILABLE when the port cannot be had.
  static absl::StatusOr<std::unique_ptr<DirectServer>> Start(const DirectOptions& options,
                                                             DirectParts parts);
  ~DirectServer();

  int port() const { return port_; }
  size_t connections() const;
  uint64_t refused() const;  // see AcceptedConnections

 private:
  class Connection;
  DirectServer(const DirectOptions& options, DirectParts parts, DirectSocket socket);

  const DirectOptions options_;
  DirectParts parts_;
  const int port_;
  AcceptedConnections<DirectSocket, Connection> connections_;  // last: they use the others
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_TRANSPORTS_DIRECT_SERVER_H_
