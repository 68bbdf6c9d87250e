// A Get of pages by runs of layers: one batch of requests, run after run and within a run page
// after page. The call merges their answers.
#ifndef KVSTOW_CLIENT_LAYER_CALL_H_
#define KVSTOW_CLIENT_LAYER_CALL_H_

#include <vector>

#include "client/client.h"
#include "client/client_core.h"

namespace kvstow {

// Does what Client::GetLayersAsync says. Both callbacks run on core.executor; `core` outlives the
// call (OpenCalls counts it).
void StartLayerGet(ClientCore& core, const SpaceInfo& space, uint64_t lease,
                   std::vector<PageGet> pages, uint32_t layers_per_run,
                   Client::LayersDone on_layers, Client::GetDone done);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_LAYER_CALL_H_
