// The bulk streams, Put and Get: gRPC's side of PageWriter and PageReader.
//
// A stream is a gRPC reactor over raw messages (proto/wire/chunk.h); it owns itself and goes when
// its call is done. Frames are checked and copied on gRPC's threads, everything that takes time
// runs on the worker pools. Flow is counted in payload bytes: a Put client sends what it was
// granted and gets it back when a page is done; a Get client grants what it is ready to take, and
// pages are read and decoded ahead of it no further than that and a window.
//
// Framing that cannot be understood ends the stream with INVALID_ARGUMENT; what is wrong with one
// page is that page's result. A stream that breaks leaves nothing behind: what was half sent is
// dropped, what was wholly sent is stored.
#ifndef KVSTOW_SERVICE_STREAMS_H_
#define KVSTOW_SERVICE_STREAMS_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>

#include "absl/status/status.h"
#include "service/metrics.h"
#include "service/page_reader.h"
#include "service/page_writer.h"
#include "service/spaces.h"
#include "service/worker_pool.h"
#include "storage/staging.h"

namespace kvstow {

class LocalSessions;

struct StreamLimits {
  uint64_t window_bytes = 32 << 20;  // of one stream; at least two pages of its space
  uint64_t get_chunk_bytes = 1 << 20;
  size_t pending_pages = 65536;  // asked for on one Get stream and not yet answered
  int streams = 256;             // of each kind, over all connections
};

// What streams work with; outlives them all.
struct StreamParts {
  Spaces& spaces;
  Staging& staging;
  PageWriter& writer;
  PageReader& reader;
  Metrics& metrics;
  WorkerPool& put_workers;
  WorkerPool& get_workers;
  StreamLimits limits;
  LocalSessions* local = nullptr;  // set before the first call; null: there are none
  std::atomic<int> put_streams = 0, get_streams = 0;
};

using RawReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
RawReactor* NewPutStream(StreamParts& parts, grpc::CallbackServerContext* context);
RawReactor* NewGetStream(StreamParts& parts, grpc::CallbackServerContext* context);

// FAILED_PRECONDITION for a call without a deadline: nothing may wait for ever.
absl::Status CheckDeadline(const grpc::CallbackServerContext& context, Metrics& metrics);

// Counts a stream for as long as it lives; over the limit, admitted() is RESOURCE_EXHAUSTED.
class StreamCount {
 public:
  StreamCount(StreamParts& parts, StreamKind kind);
  ~StreamCount();
  StreamCount(const StreamCount&) = delete;
  StreamCount& operator=(const StreamCount&) = delete;
  absl::Status admitted() const;

 private:
  StreamParts& parts_;
  const StreamKind kind_;
  std::atomic<int>& count_;
  const int before_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_STREAMS_H_
