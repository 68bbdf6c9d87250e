#include "service/streams.h"

#include <chrono>

#include "absl/strings/str_cat.h"

namespace kvstow {

absl::Status CheckDeadline(const grpc::CallbackServerContext& context, Metrics& metrics) {
  if (context.deadline() != std::chrono::system_clock::time_point::max()) return absl::OkStatus();
  metrics.CountRefusedCall("no_deadline");
  return absl::FailedPreconditionError("the call has no deadline: every call needs one");
}

StreamCount::StreamCount(StreamParts& parts, StreamKind kind)
    : parts_(parts),
      kind_(kind),
      count_(kind == StreamKind::kPut ? parts.put_streams : parts.get_streams),
      before_(count_.fetch_add(1)) {
  parts_.metrics.AddStreams(kind_, 1);
}

StreamCount::~StreamCount() {
  --count_;
  parts_.metrics.AddStreams(kind_, -1);
}

absl::Status StreamCount::admitted() const {
  if (before_ < parts_.limits.streams) return absl::OkStatus();
  parts_.metrics.CountRefusedCall("too_many_streams");
  return absl::ResourceExhaustedError(
      absl::StrCat("there are ", parts_.limits.streams, " streams of this kind: try again later"));
}

}  // namespace kvstow
