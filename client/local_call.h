// A Get or a Put of a batch of pages whose buffers are shared with the server, through the local
// session. Pages that the session leaves without an answer go over a stream.
#ifndef KVSTOW_CLIENT_LOCAL_CALL_H_
#define KVSTOW_CLIENT_LOCAL_CALL_H_

#include <string>
#include <vector>

#include "client/client.h"
#include "client/client_core.h"
#include "client/get_call.h"

namespace kvstow {

// Works like StartGet, but chooses the way: through the GPU's memory where some page is there
// (gpu_call.h), through the memory of an open session where every page lies in it, over a direct
// connection where one is idle, else over a stream.
void StartAnyGet(ClientCore& core, GetBatch batch, Time deadline);

// Returns true when every page lies in memory of an open session and can go there. The call has
// then begun, and ends as StartPut says, but its callback may run on the session's thread. Returns
// false, and does nothing, when the call must go another way.
bool StartLocalPut(ClientCore& core, const std::string& space, std::vector<PagePut>& pages,
                   Client::PutDone& done);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_LOCAL_CALL_H_
