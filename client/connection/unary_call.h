// Calls that wait for their answer: one message out or several, one back or several.
#ifndef KVSTOW_CLIENT_CONNECTION_UNARY_CALL_H_
#define KVSTOW_CLIENT_CONNECTION_UNARY_CALL_H_

#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "client/connection/rpc_core.h"

namespace kvstow {

struct Answer {
  grpc::ByteBuffer message;
  const Node* node;  // which gave it
};

// Sends one message and returns one, over the metadata connection. Retries as client.h says. Blocks
// until `deadline` at most. Errors carry an explanation for people.
absl::StatusOr<Answer> CallUnary(RpcCore& core, const std::string& method,
                                 const grpc::ByteBuffer& request, Time deadline);

// Works like CallUnary, but asks this node alone, and blocks at most core.options.timeout. Gives up
// when another one takes over.
absl::StatusOr<grpc::ByteBuffer> CallUnaryAt(RpcCore& core, Node& node, const std::string& method,
                                             const grpc::ByteBuffer& request);

// Works like CallUnaryAt, but makes a single attempt, until `deadline`. Errors are as they came.
absl::StatusOr<grpc::ByteBuffer> CallUnaryOnce(RpcCore& core, Node& node, const std::string& method,
                                               const grpc::ByteBuffer& request, Time deadline);

// Sends several messages, in order, and returns one; otherwise works like CallUnary.
absl::StatusOr<grpc::ByteBuffer> CallClientStreaming(RpcCore& core, const std::string& method,
                                                     std::span<const grpc::ByteBuffer> requests,
                                                     Time deadline);

// Sends one message and receives a stream; makes a single attempt. `on_message` runs on a thread of
// gRPC, one call at a time, while the caller waits.
absl::Status CallServerStreaming(RpcCore& core, const std::string& method,
                                 const grpc::ByteBuffer& request,
                                 std::function<void(const grpc::ByteBuffer&)> on_message);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONNECTION_UNARY_CALL_H_
