// Notes slow and failing unary calls of kvstow.v1 in a CallLog.
//
// A gRPC interceptor, so that no handler has to do it. It sees every unary call but Lookup, which
// its handler notes; the pages of Put and Get are noted by Metrics. These pay nothing here.
#ifndef KVSTOW_SERVICE_API_CALL_NOTES_H_
#define KVSTOW_SERVICE_API_CALL_NOTES_H_

#include <grpcpp/support/server_interceptor.h>
#include <grpcpp/support/string_ref.h>

#include <map>
#include <memory>

#include "service/access/call_ids.h"
#include "service/ops/call_log.h"

namespace kvstow {

// `calls` outlives the server.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeCallNotes(
    CallLog& calls);

// Returns the ids in the metadata of a call.
CallIds IdsIn(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_API_CALL_NOTES_H_
