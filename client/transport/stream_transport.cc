#include <utility>

#include "client/transport/stream_call.h"
#include "client/transport/transports.h"

namespace kvstow {
namespace {

PageOutcome Refusal(const GetBatch&) { return PageOutcome::kNotCompatible; }
PageOutcome Refusal(const PutBatch&) { return PageOutcome::kRefused; }

template <typename Batch>
void Start(ClientCore& core, std::shared_ptr<Batch> batch, Transport::Next next) {
  for (const size_t i : batch->Missing()) {
    if (batch->pages[i].on_gpu) batch->Answer(i, Refusal(*batch), kNotOnGpu);
  }
  const bool opened = !batch->payload->fingerprint.empty();
  const Attempts attempts(core.options.attempts, batch->deadline);
  auto call = std::make_shared<StreamCall<Batch>>(StreamCall<Batch>{
      core, std::move(batch), std::make_shared<PagesInUse>(core, std::move(next)), attempts});
  if (call->batch->AllAnswered()) return;
  return opened ? StartStream(std::move(call)) : OpenAndStart(call);
}

class StreamTransport final : public Transport {
 public:
  explicit StreamTransport(ClientCore& core) : core_(core) {}
  void Get(std::shared_ptr<GetBatch> batch, Next next) override {
    Start(core_, std::move(batch), std::move(next));
  }
  void Put(std::shared_ptr<PutBatch> batch, Next next) override {
    Start(core_, std::move(batch), std::move(next));
  }

 private:
  ClientCore& core_;
};

}  // namespace

std::unique_ptr<Transport> MakeStreamTransport(ClientCore& core) {
  return std::make_unique<StreamTransport>(core);
}

}  // namespace kvstow
