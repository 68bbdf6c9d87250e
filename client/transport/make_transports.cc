#include "client/transport/make_transports.h"

#include <utility>
#include <vector>

#include "client/transport/direct_transport.h"
#include "client/transport/gpu_transport.h"
#include "client/transport/local_transport.h"
#include "client/transport/stream_transport.h"

namespace kvstow {

std::unique_ptr<Transport> MakeTransports(ClientCore& core) {
  std::vector<std::unique_ptr<Transport>> order;
  order.push_back(std::make_unique<LocalTransport>(core));
  order.push_back(std::make_unique<DirectTransport>(core));
  order.push_back(std::make_unique<StreamTransport>(core));
  auto of_host = std::make_unique<TransportList>(std::move(order));
  if (core.options.gpu == nullptr) return of_host;
  return std::make_unique<GpuTransport>(core, std::move(of_host));
}

}  // namespace kvstow
