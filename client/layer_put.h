// A put whose pages are still being computed (Client::PutLayers): the worker says how far they are,
// and the filled part travels.
//
// Thread-safe. May outlive its client.
#ifndef KVSTOW_CLIENT_LAYER_PUT_H_
#define KVSTOW_CLIENT_LAYER_PUT_H_

#include <cstdint>

namespace kvstow {

class LayerPut {
 public:
  // Gives the put up unless all layers were filled: the server then stores no page of it.
  virtual ~LayerPut() = default;
  // Says that the first `layers` layers of every page hold what is to be stored. A later call with
  // fewer layers changes nothing. Sends up to one message of each page, which takes about as long
  // as its digest.
  virtual void Filled(uint32_t layers) = 0;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_LAYER_PUT_H_
