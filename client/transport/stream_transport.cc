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

}  // namespace

std::unique_ptr<Transport> MakeStreamTransport(ClientCore& core) {
  return MakeTransport(core, [](ClientCore& c, auto batch, Transport::Next next) {
    Start(c, std::move(batch), std::move(next));
  });
}

}  // namespace kvstow
