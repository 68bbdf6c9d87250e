// A Put of pages that are still being filled: some streams side by side, each of which sends what
// its pages have so far.
#ifndef KVSTOW_CLIENT_BATCH_LAYER_PUT_H_
#define KVSTOW_CLIENT_BATCH_LAYER_PUT_H_

#include <memory>
#include <vector>

#include "client/layer_put.h"
#include "client/transport/transport.h"

namespace kvstow {

// Does what Client::PutLayers says. `core` and `transport` outlive the put.
std::unique_ptr<LayerPut> StartLayerPut(ClientCore& core, Transport& transport,
                                        const SpaceInfo& space, std::vector<PagePut> pages,
                                        PutDone done);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_BATCH_LAYER_PUT_H_
