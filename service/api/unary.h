// Answers a unary call: checks its deadline, does the work, finishes with its status.
//
// `work` takes nothing and returns absl::Status; request and response live until the call is
// finished.
#ifndef KVSTOW_SERVICE_API_UNARY_H_
#define KVSTOW_SERVICE_API_UNARY_H_

#include <grpcpp/server_context.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "service/ops/worker_pool.h"
#include "service/spaces/messages.h"
#include "service/transports/streams.h"

namespace kvstow {

// Runs `work` on the calling thread, which is gRPC's: only for work that never waits.
template <typename Work>
grpc::ServerUnaryReactor* Reply(grpc::CallbackServerContext* context, Metrics& metrics, Work work) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  absl::Status status = CheckDeadline(*context, metrics);
  if (status.ok()) status = work();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

// Runs `work` on a worker thread.
template <typename Work>
grpc::ServerUnaryReactor* ReplyFrom(WorkerPool& workers, grpc::CallbackServerContext* context,
                                    Metrics& metrics, Work work) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  if (const absl::Status s = CheckDeadline(*context, metrics); !s.ok()) {
    reactor->Finish(ToGrpc(s));
  } else {
    workers.Submit([reactor, work = std::move(work)] { reactor->Finish(ToGrpc(work())); });
  }
  return reactor;
}

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_API_UNARY_H_
