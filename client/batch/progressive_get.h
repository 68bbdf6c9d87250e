// A Get of pages whose base level comes first: two Gets, one after the other, into the same
// buffers.
#ifndef KVSTOW_CLIENT_BATCH_PROGRESSIVE_GET_H_
#define KVSTOW_CLIENT_BATCH_PROGRESSIVE_GET_H_

#include <string>
#include <vector>

#include "client/transport/transport.h"

namespace kvstow {

// Does what Client::GetProgressiveAsync says. Both callbacks run on core.executor; `core` outlives
// the call (OpenCalls counts it).
void StartProgressiveGet(ClientCore& core, Transport& transport, std::string space, uint64_t lease,
                         std::vector<PageGet> pages, BaseDone on_base, GetDone done);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_BATCH_PROGRESSIVE_GET_H_
