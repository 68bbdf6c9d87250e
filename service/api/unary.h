// Answers a unary call: lets the caller in (gate.h), does the work, finishes with its status.
//
// `work` takes the caller and returns absl::Status; request and response live until the call is
// finished.
#ifndef KVSTOW_SERVICE_API_UNARY_H_
#define KVSTOW_SERVICE_API_UNARY_H_

#include <grpcpp/server_context.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "service/api/gate.h"
#include "service/ops/worker_pool.h"
#include "service/spaces/messages.h"
#include "service/transports/streams.h"

namespace kvstow {

// Runs `work` on the calling thread, which is gRPC's: only for work that never waits.
template <typename Work>
grpc::ServerUnaryReactor* Reply(Gate& gate, const Right& right,
                                grpc::CallbackServerContext* context,
                                const google::protobuf::Message& request, Work work) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const absl::StatusOr<CallerPtr> caller = gate.Enter(*context, right);
  absl::Status status = caller.status();
  if (status.ok()) {
    status = work(*caller);
    gate.Leave(*context, **caller, right, request, status);
  }
  reactor->Finish(ToGrpc(status));
  return reactor;
}

// Runs `work` on a worker thread.
template <typename Work>
grpc::ServerUnaryReactor* ReplyFrom(WorkerPool& workers, Gate& gate, const Right& right,
                                    grpc::CallbackServerContext* context,
                                    const google::protobuf::Message& request, Work work) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  absl::StatusOr<CallerPtr> caller = gate.Enter(*context, right);
  if (!caller.ok()) {
    reactor->Finish(ToGrpc(caller.status()));
    return reactor;
  }
  workers.Submit([reactor, context, &gate, &right, &request, caller = *std::move(caller),
                  work = std::move(work)] {
    const absl::Status status = work(caller);
    gate.Leave(*context, *caller, right, request, status);
    reactor->Finish(ToGrpc(status));
  });
  return reactor;
}

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_API_UNARY_H_
