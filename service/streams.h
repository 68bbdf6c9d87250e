// The bulk streams, Put and Get: gRPC's side of PageWriter and PageReader.
//
// A stream is a gRPC reactor over raw messages (proto/wire/chunk.h); it owns itself and goes when
// its call is done. Frames are checked and copied on gRPC's threads, everything that takes time
// runs on the worker pools. Flow is counted in payload bytes: a Put client sends what it was
// granted and gets it back when a page is done; a Get client grants what it is ready to take, and
// pages are read and decoded ahead of it no further than that and a window.
//
// Overload: all windows of Put streams together are within the budget of staged pages, and what Get
// streams have read ahead within one of its own. A stream that there is no room for, or one too
// many, is RESOURCE_EXHAUSTED before it sent a page, and told when to come back: trailing metadata
// kPushbackKey, which gRPC's own retries and the C++ client go by.
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
#include <chrono>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "service/metrics.h"
#include "service/page_reader.h"
#include "service/page_writer.h"
#include "service/spaces.h"
#include "service/worker_pool.h"
#include "storage/staging.h"

namespace kvstow {

class DirectServer;
class LocalSessions;

struct StreamLimits {
  uint64_t window_bytes = 32 << 20;  // of one stream; at least two pages of its space
  // Windows of all Put streams, which are within what may be staged too: more would only wait for
  // its turn, in memory.
  uint64_t put_bytes = 256 << 20;
  // Read ahead by all Get streams; each may have a page ahead all the same.
  uint64_t get_bytes = 256 << 20;
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
  // Set before the first call; null: there are none.
  LocalSessions* local = nullptr;
  DirectServer* direct = nullptr;
  std::atomic<int> put_streams = 0, get_streams = 0;
  std::atomic<uint64_t> put_granted = 0, get_ahead = 0;
  // Of direct connections, a page each: up to a half of what Put streams may have is theirs.
  std::atomic<uint64_t> direct_bytes = 0;
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

// A Put stream's window, for as long as the stream lives.
class PutWindow {
 public:
  explicit PutWindow(StreamParts& parts) : parts_(parts) {}
  ~PutWindow() { parts_.put_granted -= bytes_; }
  PutWindow(const PutWindow&) = delete;
  PutWindow& operator=(const PutWindow&) = delete;
  // Once: the bytes that the stream may have under way, a quarter of what is left at most but room
  // for two pages. RESOURCE_EXHAUSTED when that is not left, unless there is no other stream.
  absl::StatusOr<uint64_t> Take(uint64_t page_bytes);

 private:
  StreamParts& parts_;
  uint64_t bytes_ = 0;
};

// Tells a call that is about to end with RESOURCE_EXHAUSTED when to come back, any other nothing.
void AddPushback(grpc::CallbackServerContext& context, const absl::Status& status,
                 std::chrono::milliseconds after);

// Ends a stream; one that is RESOURCE_EXHAUSTED is told when to come back.
void FinishStream(RawReactor& stream, grpc::CallbackServerContext& context,
                  const absl::Status& status);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_STREAMS_H_
