// The bulk streams, Put and Get: gRPC's side of PageWriter and PageReader.
//
// A stream is a gRPC reactor over raw messages (proto/wire/chunk.h). It owns itself and goes when
// its call is done. gRPC's threads check and copy frames; the worker pools do everything that takes
// time. Flow is counted in payload bytes. A Put client sends what it was granted and gets it back
// when a page is done. A Get client grants what it is ready to take; the server reads and decodes
// pages ahead of it no further than that and a window.
//
// Overload: Admission holds the windows of Put streams and what Get streams have read ahead. A
// stream ends with RESOURCE_EXHAUSTED when there is no room for it, there is one too many, or
// nothing moves on it. It is then told when to come back by trailing metadata kPushbackKey, which
// gRPC's own retries and the C++ client go by. Pages that there is no room for yet wait in line.
//
// Framing that cannot be understood ends the stream with INVALID_ARGUMENT. A page's result reports
// what is wrong with that page. A stream that breaks leaves nothing behind: the server drops
// half-sent pages and stores wholly sent ones.
#ifndef KVSTOW_SERVICE_TRANSPORTS_STREAMS_H_
#define KVSTOW_SERVICE_TRANSPORTS_STREAMS_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <chrono>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "service/access/access.h"
#include "service/ops/metrics.h"
#include "service/ops/worker_pool.h"
#include "service/pages/admission.h"
#include "service/pages/incoming_page.h"
#include "service/pages/page_reader.h"
#include "service/spaces/spaces.h"

namespace kvstow {

class DirectServer;
class LocalSessions;

// Limits of one stream; AdmissionLimits has those of all streams.
struct StreamLimits {
  uint64_t window_bytes = 32 << 20;  // at least two pages of its space, where there is room
  uint64_t get_chunk_bytes = 1 << 20;
  size_t pending_pages = 65536;  // asked for on one Get stream and not yet answered
};

// The parts that streams use; outlives them all.
struct StreamParts {
  Spaces& spaces;
  PutParts& puts;
  PageReader& reader;
  Metrics& metrics;
  Admission& admission;
  WorkerPool& put_workers;
  WorkerPool& get_workers;
  WorkerPool& far_workers;  // they wait for the remote tier
  StreamLimits limits;
  // Set before the first call; null = there are none.
  LocalSessions* local = nullptr;
  DirectServer* direct = nullptr;
};

using RawReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
// A stream that `caller` was refused ends with that status. Who a stream's caller is, is decided at
// its start.
RawReactor* NewPutStream(StreamParts& parts, grpc::CallbackServerContext* context,
                         absl::StatusOr<CallerPtr> caller);
RawReactor* NewGetStream(StreamParts& parts, grpc::CallbackServerContext* context,
                         absl::StatusOr<CallerPtr> caller);

// Fails with FAILED_PRECONDITION for a call without a deadline: nothing may wait for ever.
absl::Status CheckDeadline(const grpc::CallbackServerContext& context, Metrics& metrics);

// Tells a call that is about to end with RESOURCE_EXHAUSTED when to come back; tells any other
// nothing.
void AddPushback(grpc::CallbackServerContext& context, const absl::Status& status,
                 std::chrono::milliseconds after);

// Ends a stream. When it ends with RESOURCE_EXHAUSTED, it is told when to come back.
void FinishStream(RawReactor& stream, grpc::CallbackServerContext& context,
                  const absl::Status& status);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_TRANSPORTS_STREAMS_H_
