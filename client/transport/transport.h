// One way of pages between a client and its server: memory that both share, a direct connection, a
// stream. A batch goes through the client's transports in order, the fastest first. Each takes what
// it can, and leaves the rest to the next:
//
//   GpuTransport     pages on the GPU, through memory on it or through the host's memory, then as
//                    pages of the host
//   LocalTransport   pages in memory that the server on this host shares
//   DirectTransport  an idle direct connection
//   StreamTransport  a gRPC stream: answers every page, opens the space, tries again
//
// Layers and progressive gets (client/batch) stand above the transports, and work on all of them.
#ifndef KVSTOW_CLIENT_TRANSPORT_TRANSPORT_H_
#define KVSTOW_CLIENT_TRANSPORT_TRANSPORT_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "client/connection/client_core.h"
#include "client/transport/batch.h"

namespace kvstow {

// Thread-safe.
class Transport {
 public:
  using Next = std::function<void()>;
  virtual ~Transport() = default;

  // Get and Put take what they can of the pages that have no answer. They call `next` once, on
  // whatever thread, when the transport neither uses the batch nor touches its buffers any more. A
  // page without an answer is then the next transport's. Neither blocks. A transport that can take
  // nothing calls `next` before it returns.
  virtual void Get(std::shared_ptr<GetBatch> batch, Next next) = 0;
  virtual void Put(std::shared_ptr<PutBatch> batch, Next next) = 0;
};

// Transports in order, as one. An empty list takes nothing.
class TransportList final : public Transport {
 public:
  explicit TransportList(std::vector<std::unique_ptr<Transport>> order)
      : order_(std::move(order)) {}
  void Get(std::shared_ptr<GetBatch> batch, Next next) override;
  void Put(std::shared_ptr<PutBatch> batch, Next next) override;

 private:
  const std::vector<std::unique_ptr<Transport>> order_;
};

// Makes a transport of `start`, which does what Get and Put of Transport do, for either kind of
// batch: start(core, batch, next). `core` outlives the transport.
template <typename Start>
std::unique_ptr<Transport> MakeTransport(ClientCore& core, Start start) {
  class Made final : public Transport {
   public:
    Made(ClientCore& core, Start start) : core_(core), start_(std::move(start)) {}
    void Get(std::shared_ptr<GetBatch> batch, Next next) override {
      start_(core_, std::move(batch), std::move(next));
    }
    void Put(std::shared_ptr<PutBatch> batch, Next next) override {
      start_(core_, std::move(batch), std::move(next));
    }

   private:
    ClientCore& core_;
    const Start start_;
  };
  return std::make_unique<Made>(core, std::move(start));
}

// Start a batch. It ends once every page has a result and nobody touches its buffers any more, on a
// thread of the library; `core` outlives it (OpenCalls counts it). A put refuses a page without
// bytes or with a bad key.
void StartBatch(ClientCore& core, Transport& transport, std::shared_ptr<GetBatch> batch);
void StartBatch(ClientCore& core, Transport& transport, std::shared_ptr<PutBatch> batch);

// Returns whether a stream should take a page that the node refused beside streams: the node may
// drain, and refuses the stream then, which another node takes.
inline bool MayStoreElsewhere(const ClientCore& core, const PutResult& result) {
  return core.nodes.several() && result.outcome == PageOutcome::kRefused;
}

// Returns whether a page should be asked for again without a lease: the node does not know the
// lease that it was told of.
inline bool IsForeignLease(const ClientCore& core, const Node& node, uint64_t lease,
                           PageOutcome outcome) {
  return outcome == PageOutcome::kExpired && core.nodes.MayNotKnow(node, lease);
}

// Ends a transport's part of a batch, on a thread that must not block. When all is answered, goes
// on at once: another thread would be one more wake-up.
template <typename Batch>
void GoOn(ClientCore& core, const Batch& batch, Transport::Next next) {
  if (batch.AllAnswered()) return next();
  core.executor.Run(std::move(next));
}

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_TRANSPORT_TRANSPORT_H_
