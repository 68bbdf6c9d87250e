#include "service/streams.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "proto/wire/chunk.h"
#include "service/convert.h"

namespace kvstow {
namespace {

constexpr std::chrono::milliseconds kPushback{100};  // a page comes, is coded and is stored

}  // namespace

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

absl::StatusOr<uint64_t> PutWindow::Take(uint64_t page_bytes) {
  const uint64_t budget = std::min(parts_.limits.put_bytes, parts_.staging.budget_bytes());
  const uint64_t streams = budget - std::min<uint64_t>(parts_.direct_bytes, budget / 2);
  uint64_t granted = parts_.put_granted, window = 0;
  do {
    const uint64_t left = streams - std::min(streams, granted);
    window = std::max(std::min(parts_.limits.window_bytes, left / 4), 2 * page_bytes);
    if (window > left && granted > 0) {
      parts_.metrics.CountRefusedCall("put_memory");
      return absl::ResourceExhaustedError(
          absl::StrCat("the memory for pages on their way in, ", budget,
                       " bytes, is given to other streams: try again later"));
    }
  } while (!parts_.put_granted.compare_exchange_weak(granted, granted + window));
  return bytes_ = window;
}

void AddPushback(grpc::CallbackServerContext& context, const absl::Status& status,
                 std::chrono::milliseconds after) {
  if (!absl::IsResourceExhausted(status)) return;
  context.AddTrailingMetadata(kPushbackKey, absl::StrCat(after.count()));
}

void FinishStream(RawReactor& stream, grpc::CallbackServerContext& context,
                  const absl::Status& status) {
  AddPushback(context, status, kPushback);
  stream.Finish(ToGrpc(status));
}

}  // namespace kvstow
