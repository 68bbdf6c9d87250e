// A Get or a Put of a batch of pages whose buffers are shared with the server: by the local
// session, and what it leaves without an answer over a stream.
#ifndef KVSTOW_CLIENT_LOCAL_CALL_H_
#define KVSTOW_CLIENT_LOCAL_CALL_H_

#include <string>
#include <vector>

#include "client/client.h"
#include "client/client_core.h"
#include "client/get_call.h"

namespace kvstow {

// As StartGet: through the GPU's memory where some page is there (gpu_call.h), through the memory
// of an open session where every page lies in it, else over a direct connection where one is idle.
void StartAnyGet(ClientCore& core, GetBatch batch, Time deadline);

// True when every page lies in memory of an open session and can go there: the call has begun, and
// ends as StartPut says. False when it must go over a stream; nothing was done then.
bool StartLocalPut(ClientCore& core, const std::string& space, std::vector<PagePut>& pages,
                   Client::PutDone& done);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_LOCAL_CALL_H_
