// Pages over an idle direct connection, all of them in one conversation. Takes none when no
// connection is idle, and leaves those that the server refuses, that came damaged or that a broken
// connection cut off.
#ifndef KVSTOW_CLIENT_TRANSPORT_DIRECT_TRANSPORT_H_
#define KVSTOW_CLIENT_TRANSPORT_DIRECT_TRANSPORT_H_

#include <memory>

#include "client/transport/transport.h"

namespace kvstow {

class DirectTransport final : public Transport {
 public:
  // `core` outlives the transport.
  explicit DirectTransport(ClientCore& core) : core_(core) {}
  void Get(std::shared_ptr<GetBatch> batch, Next next) override;
  void Put(std::shared_ptr<PutBatch> batch, Next next) override;

 private:
  ClientCore& core_;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_TRANSPORT_DIRECT_TRANSPORT_H_
