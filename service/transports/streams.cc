#include "service/transports/streams.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "proto/wire/chunk.h"
#include "service/spaces/messages.h"

namespace kvstow {
namespace {

constexpr std::chrono::milliseconds kPushback{100};  // a page comes, is coded and is stored

}  // namespace

absl::Status CheckDeadline(const grpc::CallbackServerContext& context, Metrics& metrics) {
  if (context.deadline() != std::chrono::system_clock::time_point::max()) return absl::OkStatus();
  metrics.CountRefusedCall("no_deadline");
  return absl::FailedPreconditionError("the call has no deadline: every call needs one");
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
