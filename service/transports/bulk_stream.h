// The common part of Put and Get streams: admission, also as one of its caller's tenant, and a
// writing side on which any thread may find work to do. The thread decides under the lock and acts
// outside it, since gRPC may call back at once. The thread that decided does the work.
//
// A base of streams, not an interface of its own. It owns itself: it goes when the call is done and
// nobody is about to end it any more.
#ifndef KVSTOW_SERVICE_TRANSPORTS_BULK_STREAM_H_
#define KVSTOW_SERVICE_TRANSPORTS_BULK_STREAM_H_

#include <memory>
#include <utility>

#include "base/mutex.h"
#include "service/pages/admission.h"
#include "service/transports/streams.h"

namespace kvstow {

class BulkStream : public RawReactor, public AdmittedStream {
 public:
  // Reads the first message, or ends a stream whose caller was refused, or that is not admitted.
  static RawReactor* Start(std::shared_ptr<BulkStream> stream, absl::StatusOr<CallerPtr> caller);
  void OnDone() final { std::exchange(self_, nullptr).reset(); }
  void End(const absl::Status& why) final;

 protected:
  enum class Next { kNothing, kWrite, kFinish };

  BulkStream(StreamParts& parts, grpc::CallbackServerContext& context, StreamKind kind)
      : parts_(parts), context_(context), kind_(kind) {}

  // Returns the next step. Not kFinish while busy_.
  virtual Next WhatNext() KVSTOW_REQUIRES(mu_) = 0;
  virtual bool Holding() const KVSTOW_REQUIRES(mu_) = 0;
  // Called whenever something moved.
  void Moved() KVSTOW_REQUIRES(mu_) { place_.Moved(busy_ > 0, Holding()); }
  Next Decide() KVSTOW_REQUIRES(mu_);  // WhatNext, when something moved
  // Does the decided step: writes out_, or ends the stream with final_. Static, since with kNothing
  // the stream may be gone by now: another thread ended it.
  static void Act(BulkStream* stream, Next next);

  StreamParts& parts_;
  grpc::CallbackServerContext& context_;
  CallerPtr caller_;  // set before the first message
  grpc::ByteBuffer in_;

  Mutex mu_;
  grpc::ByteBuffer out_;  // belongs to gRPC while writing_
  bool writing_ KVSTOW_GUARDED_BY(mu_) = false;
  bool reading_done_ KVSTOW_GUARDED_BY(mu_) = false;
  bool broken_ KVSTOW_GUARDED_BY(mu_) = false;  // nobody listens any more
  bool finished_ KVSTOW_GUARDED_BY(mu_) = false;
  int busy_ KVSTOW_GUARDED_BY(mu_) = 0;  // the server's work for it: pages on worker threads
  absl::Status final_ KVSTOW_GUARDED_BY(mu_);

 private:
  // Takes a place among the tenant's streams, and one among all.
  absl::Status TakePlaces(const std::shared_ptr<BulkStream>& self);
  // Notes a failure, and finishes. The stream may be gone afterwards.
  void FinishWith(const absl::Status& status);

  const StreamKind kind_;
  std::shared_ptr<BulkStream> self_;  // until OnDone
  Admission::Place place_;
  TenantTable::Stream of_tenant_ KVSTOW_GUARDED_BY(mu_);  // until it finishes
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_TRANSPORTS_BULK_STREAM_H_
