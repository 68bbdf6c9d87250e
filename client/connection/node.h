// One server of a client, and the ways to it: gRPC connections, memory that both share, direct
// connections.
//
// The client makes a node when the node first becomes current, or is first asked. It lives as long
// as the client: calls hold references. Thread-safe.
#ifndef KVSTOW_CLIENT_CONNECTION_NODE_H_
#define KVSTOW_CLIENT_CONNECTION_NODE_H_

#include <string>
#include <utility>

#include "client/client_options.h"
#include "client/connection/channel.h"
#include "client/connection/direct_pool.h"
#include "client/connection/local_memory.h"

namespace kvstow {

struct Node {
  // `name` is what the server's certificate must have; "" = the host of the address. The two
  // functions ask this node.
  Node(std::string at, const std::string& name, const ClientOptions& options,
       LocalMemory::Ask ask_local, DirectPool::Ask ask_direct)
      : address(std::move(at)),
        channels(address, name, options.tls),
        local({options.shared_bytes, options.timeout, options.gpu, options.gpu_shared_bytes},
              std::move(ask_local)),
        direct(address, options.direct_connections, channels.tls(), std::move(ask_direct)) {}

  // Ends everything that is open here, soon. Nothing opens afterwards.
  void Close() {
    channels.CloseBulk();
    local.Close();
    direct.Close();
  }

  const std::string address;
  Channels channels;
  LocalMemory local;
  DirectPool direct;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONNECTION_NODE_H_
