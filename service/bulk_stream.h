// What Put and Get streams have in common: admission, and a writing side on which any thread may
// find that something is to be done. It decides what under the lock and does it outside, since
// gRPC may call back at once; whoever has decided does it.
//
// A base of streams, not an interface of its own. It owns itself: gone when the call is done.
#ifndef KVSTOW_SERVICE_BULK_STREAM_H_
#define KVSTOW_SERVICE_BULK_STREAM_H_

#include "base/mutex.h"
#include "service/streams.h"

namespace kvstow {

class BulkStream : public RawReactor {
 public:
  void OnDone() final { delete this; }

 protected:
  enum class Next { kNothing, kWrite, kFinish };

  // Reads the first message, or ends a stream that is not admitted.
  BulkStream(StreamParts& parts, grpc::CallbackServerContext& context, StreamKind kind);

  // Does what was decided: writes out_, or ends the stream with final_. Static, since with kNothing
  // the stream may be gone by now: another thread ended it.
  static void Act(BulkStream* stream, Next next);

  StreamParts& parts_;
  grpc::CallbackServerContext& context_;
  grpc::ByteBuffer in_;

  Mutex mu_;
  grpc::ByteBuffer out_;  // belongs to gRPC while writing_
  bool writing_ KVSTOW_GUARDED_BY(mu_) = false;
  bool reading_done_ KVSTOW_GUARDED_BY(mu_) = false;
  bool broken_ KVSTOW_GUARDED_BY(mu_) = false;  // nobody listens any more
  bool finished_ KVSTOW_GUARDED_BY(mu_) = false;
  absl::Status final_ KVSTOW_GUARDED_BY(mu_);

 private:
  const StreamCount count_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_BULK_STREAM_H_
