// A put whose pages are still being computed (Client::PutLayers): the worker says how far they are,
// and what is there travels.
//
// Thread-safe. May outlive its client.
#ifndef KVSTOW_CLIENT_LAYER_PUT_H_
#define KVSTOW_CLIENT_LAYER_PUT_H_

#include <cstdint>

namespace kvstow {

class LayerPut {
 public:
  // Gives the put up unless all layers were filled: no page of it is stored.
  virtual ~LayerPut() = default;
  // The first `layers` layers of every page hold what is to be stored; said again with fewer, it
  // changes nothing. Sends up to a message of each page: about its digest's time.
  virtual void Filled(uint32_t layers) = 0;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_LAYER_PUT_H_
