// The bulk messages of Put and Get on the wire, without copying their payload into protobuf
// strings.
//
// PutRequest and GetResponse end in `bytes data = 15`. A message is written as one small slice (the
// other fields and the tag and length of `data`) followed by slices that reference the payload; it
// is read by parsing the fields up to `data` and taking the rest as a list of slices. What is on
// the wire is plain protobuf: clients of other languages use generated code for the same methods.
//
// Free functions; thread-safe. Reading never trusts a length: INVALID_ARGUMENT for anything
// malformed.
#ifndef KVSTOW_PROTO_WIRE_CHUNK_H_
#define KVSTOW_PROTO_WIRE_CHUNK_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/shared_bytes.h"
#include "kvstow/v1/kv_cache.pb.h"

namespace kvstow {

inline constexpr size_t kMaxChunkBytes = 4 << 20;           // of payload in one message
inline constexpr int kMaxMessageBytes = (4 << 20) + 65536;  // gRPC's limit for a message, both ways
// Trailing metadata of a call that is refused for now: when to try again, in milliseconds. gRPC's
// own retries go by it too.
inline constexpr char kPushbackKey[] = "grpc-retry-pushback-ms";

// `message` must have no `data`; the result has `payload` in its place. The payload is referenced,
// not copied.
grpc::ByteBuffer WriteChunk(const v1::PutRequest& message, std::span<const SharedBytes> payload);
grpc::ByteBuffer WriteChunk(const v1::GetResponse& message, std::span<const SharedBytes> payload);

// The payload of a message that was read: its slices in order.
struct ChunkPayload {
  std::vector<grpc::Slice> slices;
  uint64_t bytes = 0;
};
absl::StatusOr<ChunkPayload> ReadChunk(const grpc::ByteBuffer& buffer, v1::PutRequest& message);
absl::StatusOr<ChunkPayload> ReadChunk(const grpc::ByteBuffer& buffer, v1::GetResponse& message);

// Messages without payload (PutResponse, GetRequest) on a raw stream.
grpc::ByteBuffer WriteMessage(const google::protobuf::MessageLite& message);
absl::Status ReadMessage(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite& message);

}  // namespace kvstow

#endif  // KVSTOW_PROTO_WIRE_CHUNK_H_
