// Calls that wait for their answer: one message out or several, one back or several.
#ifndef KVSTOW_CLIENT_UNARY_CALL_H_
#define KVSTOW_CLIENT_UNARY_CALL_H_

#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "client/client_core.h"

namespace kvstow {

// One message out, one back, over the metadata connection; tried again as client.h says. Blocks at
// most core.options.timeout. Errors are explained for people.
absl::StatusOr<grpc::ByteBuffer> CallUnary(ClientCore& core, const std::string& method,
                                           const grpc::ByteBuffer& request);

// As CallUnary, but a single attempt, until `deadline`.
absl::StatusOr<grpc::ByteBuffer> CallUnaryOnce(ClientCore& core, const std::string& method,
                                               const grpc::ByteBuffer& request, Time deadline);

// Several messages out, in order, one back; otherwise as CallUnary.
absl::StatusOr<grpc::ByteBuffer> CallClientStreaming(ClientCore& core, const std::string& method,
                                                     std::span<const grpc::ByteBuffer> requests);

// One message out, a stream back; a single attempt. `on_message` runs on a thread of gRPC, one call
// at a time, while the caller waits.
absl::Status CallServerStreaming(ClientCore& core, const std::string& method,
                                 const grpc::ByteBuffer& request,
                                 std::function<void(const grpc::ByteBuffer&)> on_message);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_UNARY_CALL_H_
