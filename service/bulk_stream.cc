#include "service/bulk_stream.h"

namespace kvstow {

BulkStream::BulkStream(StreamParts& parts, grpc::CallbackServerContext& context, StreamKind kind)
    : parts_(parts), context_(context), count_(parts, kind) {
  absl::Status status = CheckDeadline(context, parts.metrics);
  if (status.ok()) status = count_.admitted();
  if (status.ok()) {
    StartRead(&in_);
  } else {
    FinishStream(*this, context_, status);
  }
}

void BulkStream::Act(BulkStream* stream, Next next) {
  if (next == Next::kWrite) stream->StartWrite(&stream->out_);
  if (next == Next::kFinish) {
    absl::Status status;
    {
      MutexLock lock(stream->mu_);
      status = stream->final_;
    }
    FinishStream(*stream, stream->context_, status);
  }
}

}  // namespace kvstow
