// A Get of pages by runs of layers: one batch of requests, run after run and within a run page
// after page. The call merges their answers.
#ifndef KVSTOW_CLIENT_BATCH_LAYER_GET_H_
#define KVSTOW_CLIENT_BATCH_LAYER_GET_H_

#include <vector>

#include "client/transport/transport.h"

namespace kvstow {

// Does what Client::GetLayersAsync says. Both callbacks run on core.executor; `core` outlives the
// call (OpenCalls counts it).
void StartLayerGet(ClientCore& core, Transport& transport, const SpaceInfo& space, uint64_t lease,
                   std::vector<PageGet> pages, uint32_t layers_per_run, LayersDone on_layers,
                   GetDone done);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_BATCH_LAYER_GET_H_
