// What the calls of one client share: RpcCore, what it knows of spaces, and the server's offers
// beside gRPC (shared memory, direct connections), for which it asks the server.
//
// Thread-safe.
#ifndef KVSTOW_CLIENT_CONNECTION_CLIENT_CORE_H_
#define KVSTOW_CLIENT_CONNECTION_CLIENT_CORE_H_

#include "client/connection/direct_pool.h"
#include "client/connection/local_memory.h"
#include "client/connection/rpc_core.h"
#include "client/payload/space_payloads.h"

namespace kvstow {

struct ClientCore : RpcCore {
  explicit ClientCore(ClientOptions o);

  // Ends all calls and waits for their callbacks. No call may begin meanwhile.
  void Close();

  SpacePayloads payloads{options};
  LocalMemory local;
  DirectPool direct;  // joins first; it uses the executor
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONNECTION_CLIENT_CORE_H_
