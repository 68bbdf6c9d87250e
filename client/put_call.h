// One Put of a batch of pages, over as many streams as it takes.
#ifndef KVSTOW_CLIENT_PUT_CALL_H_
#define KVSTOW_CLIENT_PUT_CALL_H_

#include <memory>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/client_core.h"
#include "client/layer_put.h"
#include "client/put_progress.h"
#include "kernels/codec/decode_page.h"

namespace kvstow {

// Streams `pages` into `space`. `done` runs on core.executor once every page has a result and gRPC
// has let go of every byte of the pages: it references payload and does not copy it. After a stream
// broke, another one sends the pages that have no result yet. `core` outlives the call (OpenCalls
// counts it). With `progress`, pages go raw, as far as they are filled. `coder`, if any, codes
// pages that go encoded.
void StartPut(ClientCore& core, std::string space, std::vector<PagePut> pages, Time deadline,
              Client::PutDone done, std::shared_ptr<PutProgress> progress = nullptr,
              PageCoder coder = nullptr);

// Does what Client::PutLayers says.
std::unique_ptr<LayerPut> StartLayerPut(ClientCore& core, const SpaceInfo& space,
                                        std::vector<PagePut> pages, Client::PutDone done);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_PUT_CALL_H_
