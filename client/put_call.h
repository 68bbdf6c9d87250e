// One Put of a batch of pages, over as many streams as it takes.
#ifndef KVSTOW_CLIENT_PUT_CALL_H_
#define KVSTOW_CLIENT_PUT_CALL_H_

#include <string>
#include <vector>

#include "client/client.h"
#include "client/client_core.h"

namespace kvstow {

// Streams `pages` into `space`. `done` runs on core.executor once every page has a result and gRPC
// has let go of every byte of the pages: payload is referenced, not copied. A stream that broke is
// followed by another one with the pages that have no result yet. `core` outlives the call
// (OpenCalls counts it).
void StartPut(ClientCore& core, std::string space, std::vector<PagePut> pages, Time deadline,
              Client::PutDone done);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_PUT_CALL_H_
