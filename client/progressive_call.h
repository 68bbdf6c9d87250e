// A Get of pages whose base level comes first: two Gets, one after the other, into the same
// buffers.
#ifndef KVSTOW_CLIENT_PROGRESSIVE_CALL_H_
#define KVSTOW_CLIENT_PROGRESSIVE_CALL_H_

#include <string>
#include <vector>

#include "client/client.h"
#include "client/client_core.h"

namespace kvstow {

// Does what Client::GetProgressiveAsync says. Both callbacks run on core.executor; `core` outlives
// the call (OpenCalls counts it).
void StartProgressiveGet(ClientCore& core, std::string space, uint64_t lease,
                         std::vector<PageGet> pages, Client::BaseDone on_base,
                         Client::GetDone done);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_PROGRESSIVE_CALL_H_
