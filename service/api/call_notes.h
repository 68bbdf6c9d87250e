// Notes slow and failing unary calls of kvstow.v1 in a CallLog.
//
// A gRPC interceptor, so that no handler has to do it. It sees every unary call but Lookup, which
// notes itself (KvOperator), as do the pages of Put and Get; these pay nothing here.
#ifndef KVSTOW_SERVICE_API_CALL_NOTES_H_
#define KVSTOW_SERVICE_API_CALL_NOTES_H_

#include <grpcpp/support/server_interceptor.h>

#include <memory>

#include "service/ops/call_log.h"

namespace kvstow {

// `calls` outlives the server.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeCallNotes(
    CallLog& calls);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_API_CALL_NOTES_H_
