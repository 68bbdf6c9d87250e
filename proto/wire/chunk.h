// Reads and writes the bulk messages of Put and Get, without copying their payload into protobuf
// strings.
//
// PutRequest and GetResponse end in `bytes data = 15`. A written message is one small slice (the
// other fields, and the tag and length of `data`) and then slices that reference the payload. A
// reader parses the fields up to `data` and takes the rest as a list of slices. The bytes on the
// wire are plain protobuf: clients of other languages use generated code for the same methods.
//
// Free functions; thread-safe. Reading never trusts a length, and fails with INVALID_ARGUMENT for
// anything malformed.
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
// Trailing metadata of a call that is refused for now: the milliseconds to wait before the next
// attempt. gRPC's own retries go by it too.
inline constexpr char kPushbackKey[] = "grpc-retry-pushback-ms";

// Returns `message` with `payload` as its `data`. `message` must have no `data` of its own. The
// result references the payload and does not copy it.
grpc::ByteBuffer WriteChunk(const v1::PutRequest& message, std::span<const SharedBytes> payload);
grpc::ByteBuffer WriteChunk(const v1::GetResponse& message, std::span<const SharedBytes> payload);

// The payload of a message that was read, as slices in order.
struct ChunkPayload {
  std::vector<grpc::Slice> slices;
  uint64_t bytes = 0;
};
absl::StatusOr<ChunkPayload> ReadChunk(const grpc::ByteBuffer& buffer, v1::PutRequest& message);
absl::StatusOr<ChunkPayload> ReadChunk(const grpc::ByteBuffer& buffer, v1::GetResponse& message);

// Write and read messages without payload (PutResponse, GetRequest) on a raw stream.
grpc::ByteBuffer WriteMessage(const google::protobuf::MessageLite& message);
absl::Status ReadMessage(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite& message);

}  // namespace kvstow

#endif  // KVSTOW_PROTO_WIRE_CHUNK_H_
