// A Get or a Put of a batch of pages over a direct connection, where one is idle; what it leaves
// without an answer goes over a stream.
#ifndef KVSTOW_CLIENT_DIRECT_CALL_H_
#define KVSTOW_CLIENT_DIRECT_CALL_H_

#include <string>
#include <vector>

#include "client/client.h"
#include "client/client_core.h"
#include "client/get_call.h"

namespace kvstow {

// True when the call has begun, and ends as StartGet and StartPut say, but for the thread of its
// callback: it may be the connection's. False when it must go over a stream; nothing was done then.
bool StartDirectGet(ClientCore& core, GetBatch& batch, Time deadline);
bool StartDirectPut(ClientCore& core, const std::string& space, std::vector<PagePut>& pages,
                    Client::PutDone& done, Time deadline);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_DIRECT_CALL_H_
