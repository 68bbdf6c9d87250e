// Gets and puts that are more than one batch of whole pages. They stand above the transports, and
// work on all of them. `core` and `transport` outlive each (OpenCalls counts them). Callbacks run
// on core.executor.
#ifndef KVSTOW_CLIENT_BATCH_BATCHES_H_
#define KVSTOW_CLIENT_BATCH_BATCHES_H_

#include <memory>
#include <string>
#include <vector>

#include "client/layer_put.h"
#include "client/transport/transport.h"

namespace kvstow {

// Does what Client::GetLayersAsync says: one batch of requests, run after run and within a run page
// after page. The call merges their answers.
void StartLayerGet(ClientCore& core, Transport& transport, const SpaceInfo& space, uint64_t lease,
                   std::vector<PageGet> pages, uint32_t layers_per_run, LayersDone on_layers,
                   GetDone done);

// Does what Client::PutLayers says: some streams side by side, each of which sends what its pages
// have so far.
std::unique_ptr<LayerPut> StartLayerPut(ClientCore& core, Transport& transport,
                                        const SpaceInfo& space, std::vector<PagePut> pages,
                                        PutDone done);

// Does what Client::GetProgressiveAsync says: two Gets, one after the other, into the same buffers.
void StartProgressiveGet(ClientCore& core, Transport& transport, std::string space, uint64_t lease,
                         std::vector<PageGet> pages, BaseDone on_base, GetDone done);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_BATCH_BATCHES_H_
