// One Get of a batch of pages, over as many streams as it takes.
#ifndef KVSTOW_CLIENT_GET_CALL_H_
#define KVSTOW_CLIENT_GET_CALL_H_

#include <string>
#include <vector>

#include "client/client.h"
#include "client/client_core.h"

namespace kvstow {

// Fetches `pages` of `space` into their buffers. `done` runs on core.executor once every page has a
// result; the buffers are not touched afterwards. At most options.get_window_bytes of payload are
// under way. A stream that broke is followed by another one with the pages that have no result yet.
// `core` outlives the call (OpenCalls counts it). `summaries`: key summaries come instead of pages.
void StartGet(ClientCore& core, std::string space, uint64_t lease, std::vector<PageGet> pages,
              Time deadline, Client::GetDone done, bool summaries = false);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_GET_CALL_H_
