// Pages on the client's GPU. A batch with such a page is this transport's, whole; any other one,
// and one of summaries or of pages that are still being filled, it hands on to the host's
// transports.
//
// Where the server is on the same GPU and has given its session memory there, a page goes through a
// range of that memory: the transport copies it within the GPU, before the request or after its
// answer. Other pages, and those that the session leaves without a good answer, go through host
// memory, some MiB at a time, over the host's transports. A page waits for its event, but no longer
// than the deadline.
#ifndef KVSTOW_CLIENT_TRANSPORT_GPU_TRANSPORT_H_
#define KVSTOW_CLIENT_TRANSPORT_GPU_TRANSPORT_H_

#include <memory>
#include <optional>
#include <utility>

#include "client/connection/executor.h"
#include "client/transport/gpu_coder.h"
#include "client/transport/transport.h"

namespace kvstow {

class GpuTransport final : public Transport {
 public:
  // `core`, with ClientOptions::gpu, outlives the transport.
  GpuTransport(ClientCore& core, std::unique_ptr<Transport> host);
  void Get(std::shared_ptr<GetBatch> batch, Next next) override;
  void Put(std::shared_ptr<PutBatch> batch, Next next) override;

  // What its calls share.
  struct Parts {
    ClientCore& core;
    const std::unique_ptr<Transport> host;  // for pages in the host's memory
    std::optional<GpuCoder> coder;          // none without ClientOptions::gpu_device
    Executor thread = {};                   // copies pages, and joins before the others go
  };

 private:
  Parts parts_;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_TRANSPORT_GPU_TRANSPORT_H_
