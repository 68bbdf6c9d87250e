// The common part of a Get and a Put over streams: attempts, and opening the space again. A call
// runs on core.executor, except within an open stream.
#ifndef KVSTOW_CLIENT_TRANSPORT_STREAM_CALL_H_
#define KVSTOW_CLIENT_TRANSPORT_STREAM_CALL_H_

#include <memory>
#include <utility>

#include "client/connection/attempts.h"
#include "client/connection/space_opening.h"
#include "client/transport/transport.h"

namespace kvstow {

// Goes on with a batch once nobody uses its pages any more. The slices of them that gRPC holds
// share it, as does the call.
struct PagesInUse {
  ClientCore& core;
  Transport::Next next;

  PagesInUse(ClientCore& c, Transport::Next n) : core(c), next(std::move(n)) {}
  ~PagesInUse() { core.executor.Run(std::move(next)); }
};

template <typename Batch>
struct StreamCall {
  ClientCore& core;
  std::shared_ptr<Batch> batch;
  std::shared_ptr<const PagesInUse> in_use;
  Attempts attempts;
  Node* node = nullptr;             // of the last stream
  const Node* opened_at = nullptr;  // where the space was opened again last
};

// One attempt: a stream to the current node, for the pages that have no answer. `AfterStream` runs
// at its end.
void StartStream(std::shared_ptr<StreamCall<GetBatch>> call);
void StartStream(std::shared_ptr<StreamCall<PutBatch>> call);

template <typename Batch>
void Fail(StreamCall<Batch>& call, const absl::Status& status) {
  AnswerMissing(*call.batch, Explain(status, call.core.options.address));
}

template <typename Batch>
void OpenAndStart(const std::shared_ptr<StreamCall<Batch>>& call) {
  OpenAgain(call->core, call->batch->space, call->attempts, [call](const absl::Status& status) {
    if (!status.ok()) return Fail(*call, status);
    call->batch->payload = call->core.payloads.Find(call->batch->space);
    StartStream(call);
  });
}

// `asked`: the pages of the stream, which ended with `status`. The call goes here unless there is
// another attempt.
template <typename Batch>
void AfterStream(std::shared_ptr<StreamCall<Batch>> call, absl::Status status, size_t asked) {
  const size_t left = call->batch->Missing().size();
  if (left == 0) return;
  if (status.ok()) status = absl::InternalError("the server ended the stream without an answer");
  if (IsOtherSpace(status) && std::exchange(call->opened_at, call->node) != call->node) {
    return OpenAndStart(call);
  }
  ClientCore& core = call->core;
  if (core.calls.closed()) return Fail(*call, status);
  const auto wait = core.nodes.Failed(*call->node, status)
                        ? call->attempts.Elsewhere(status)
                        : call->attempts.Next(status, left < asked);
  if (!wait) return Fail(*call, status);
  core.executor.RunAfter(*wait, [call = std::move(call)] { StartStream(call); });
}

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_TRANSPORT_STREAM_CALL_H_
