// The parts that the calls of one client share: RpcCore, whose nodes it makes, and the client's
// knowledge of spaces, which is the same on every node.
//
// Thread-safe.
#ifndef KVSTOW_CLIENT_CONNECTION_CLIENT_CORE_H_
#define KVSTOW_CLIENT_CONNECTION_CLIENT_CORE_H_

#include "client/connection/rpc_core.h"
#include "client/payload/space_payloads.h"

namespace kvstow {

struct ClientCore : RpcCore {
  explicit ClientCore(ClientOptions o);
  ~ClientCore() { nodes.JoinDirect(); }  // which use the executor

  // Ends all calls and waits for their callbacks. No call may begin meanwhile.
  void Close();

  SpacePayloads payloads{options};
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONNECTION_CLIENT_CORE_H_
