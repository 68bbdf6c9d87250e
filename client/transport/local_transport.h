// Pages in memory that the server on this host shares: they do not travel
// (proto/kvstow/v1/local.proto). Takes a page when its buffer alone can be taken out of the sharing
// (LocalSession::RangeOf) and it has no columns.
#ifndef KVSTOW_CLIENT_TRANSPORT_LOCAL_TRANSPORT_H_
#define KVSTOW_CLIENT_TRANSPORT_LOCAL_TRANSPORT_H_

#include <memory>

#include "client/transport/transport.h"

namespace kvstow {

class LocalTransport final : public Transport {
 public:
  // `core` outlives the transport.
  explicit LocalTransport(ClientCore& core) : core_(core) {}
  void Get(std::shared_ptr<GetBatch> batch, Next next) override;
  void Put(std::shared_ptr<PutBatch> batch, Next next) override;

 private:
  ClientCore& core_;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_TRANSPORT_LOCAL_TRANSPORT_H_
