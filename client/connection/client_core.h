// The parts that the calls of one client share: RpcCore, the client's knowledge of spaces, and the
// ways beside gRPC that the server offers (shared memory, direct connections).
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
