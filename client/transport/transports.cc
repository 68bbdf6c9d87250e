#include "client/transport/transports.h"

#include <utility>
#include <vector>

namespace kvstow {

std::unique_ptr<Transport> MakeTransports(ClientCore& core) {
  std::vector<std::unique_ptr<Transport>> order;
  order.push_back(MakeLocalTransport(core));
  order.push_back(MakeDirectTransport(core));
  order.push_back(MakeStreamTransport(core));
  auto host = std::make_unique<TransportList>(std::move(order));
  if (core.options.gpu == nullptr) return host;
  return MakeGpuTransport(core, std::move(host));
}

}  // namespace kvstow
