// Pages over gRPC streams, as many as it takes: answers every page. Opens the space where the
// client or the server does not know it, and tries again as client.h says; another stream then
// moves the pages that have no result yet.
//
// At most options.get_window_bytes of a Get are under way. A Put references payload and does not
// copy it, and ends when gRPC has let go of every byte. Refuses pages on a GPU.
#ifndef KVSTOW_CLIENT_TRANSPORT_STREAM_TRANSPORT_H_
#define KVSTOW_CLIENT_TRANSPORT_STREAM_TRANSPORT_H_

#include <memory>

#include "client/transport/transport.h"

namespace kvstow {

class StreamTransport final : public Transport {
 public:
  // `core` outlives the transport.
  explicit StreamTransport(ClientCore& core) : core_(core) {}
  void Get(std::shared_ptr<GetBatch> batch, Next next) override;
  void Put(std::shared_ptr<PutBatch> batch, Next next) override;

 private:
  ClientCore& core_;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_TRANSPORT_STREAM_TRANSPORT_H_
