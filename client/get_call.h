// One Get of a batch of pages, over as many streams as it takes.
#ifndef KVSTOW_CLIENT_GET_CALL_H_
#define KVSTOW_CLIENT_GET_CALL_H_

#include <functional>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/client_core.h"
#include "kernels/codec/decode_page.h"

namespace kvstow {

// Says why a call does not take a page on a GPU: nothing here may touch its bytes.
inline constexpr char kNotOnGpu[] =
    "on_gpu: only GetAsync, PutAsync and GetProgressiveAsync take pages on a GPU, of a client with "
    "ClientOptions::gpu";

struct GetBatch {
  std::string space;
  uint64_t lease = 0;
  std::vector<PageGet> pages;
  Client::GetDone done;
  bool summaries = false;  // of keys come instead of pages
  // The client checks digests, so the server need not. The call asks again for a damaged page
  // without this.
  bool checked = true;
  // If not null, gets each page that has its result, before `done`, on whatever thread, one call at
  // a time. Over one stream, pages come in order.
  std::function<void(size_t page, const GetResult&)> each = nullptr;
  PageDecoder decoder = nullptr;  // of pages that come encoded; null: the CPU decodes
};

// Fetches the pages into their buffers. `done` runs on core.executor once every page has a result.
// The call does not touch the buffers afterwards. At most options.get_window_bytes of payload are
// under way. After a stream broke, another one fetches the pages that have no result yet. `core`
// outlives the call (OpenCalls counts it).
void StartGet(ClientCore& core, GetBatch batch, Time deadline);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_GET_CALL_H_
