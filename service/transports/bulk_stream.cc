#include "service/transports/bulk_stream.h"

#include <utility>

#include "base/status_macros.h"

namespace kvstow {

RawReactor* BulkStream::Start(std::shared_ptr<BulkStream> stream,
                              absl::StatusOr<CallerPtr> caller) {
  BulkStream& s = *stream;
  absl::Status status = caller.status();
  if (status.ok()) {
    s.caller_ = *std::move(caller);
    status = s.TakePlaces(stream);
  }
  if (!status.ok()) {
    MutexLock lock(s.mu_);
    s.finished_ = true;
  }
  s.self_ = std::move(stream);
  if (status.ok()) {
    s.StartRead(&s.in_);
  } else {
    s.FinishWith(status);
  }
  return &s;
}

absl::Status BulkStream::TakePlaces(const std::shared_ptr<BulkStream>& self) {
  if (TenantTable* const tenants = parts_.puts.tenants; tenants != nullptr) {
    auto stream = tenants->OpenStream(caller_->tenant);
    if (!stream.ok()) {
      parts_.metrics.CountRefusedCall("tenant_streams");
      return stream.status();
    }
    MutexLock lock(mu_);
    of_tenant_ = *std::move(stream);
  }
  KVSTOW_ASSIGN_OR_RETURN(place_, parts_.admission.Admit(kind_, self));
  return absl::OkStatus();
}

BulkStream::Next BulkStream::Decide() {
  const Next next = WhatNext();
  Moved();
  return next;
}

// A write that the client does not take would last for ever: only cancelling the call ends it.
// While this counts as busy the stream does not finish, and its context stays.
void BulkStream::End(const absl::Status& why) {
  bool stuck = false;
  {
    MutexLock lock(mu_);
    if (finished_) return;
    reading_done_ = true;
    broken_ = true;
    final_ = why;
    stuck = writing_;
    ++busy_;
  }
  if (stuck) context_.TryCancel();
  Next next;
  {
    MutexLock lock(mu_);
    --busy_;
    next = Decide();
  }
  Act(this, next);
}

void BulkStream::Act(BulkStream* stream, Next next) {
  if (next == Next::kWrite) stream->StartWrite(&stream->out_);
  if (next == Next::kFinish) {
    absl::Status status;
    {
      MutexLock lock(stream->mu_);
      status = stream->final_;
    }
    stream->FinishWith(status);
  }
}

void BulkStream::FinishWith(const absl::Status& status) {
  {
    // The client that is told of the end may open another stream at once.
    MutexLock lock(mu_);
    of_tenant_ = {};
  }
  if (!status.ok()) {
    parts_.metrics.calls().Note(kind_ == StreamKind::kPut ? "Put" : "Get", "",
                                absl::StatusCodeToString(status.code()), {}, Clock::Real().Now());
  }
  FinishStream(*this, context_, status);
}

}  // namespace kvstow
