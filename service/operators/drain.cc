#include "service/operators/drain.h"

#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace kvstow {
namespace {

constexpr std::chrono::milliseconds kMostGrace = std::chrono::hours(1);

}  // namespace

absl::Status Drain::Run(const v1::DrainRequest& in, v1::DrainResponse& out) {
  const uint64_t most = kMostGrace.count();
  if (in.grace_ms() > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("grace_ms is ", in.grace_ms(), ": use at most ", most));
  }
  admission_.SetDraining(!in.resume());
  set_serving_(in.resume());
  if (in.resume()) {
    Log().info("serving again");
  } else {
    Log().info("draining: streams have {} ms to finish", in.grace_ms());
  }
  out.set_draining(!in.resume());
  if (!in.resume()) {
    out.set_ended_streams(admission_.EndStreams(std::chrono::milliseconds(in.grace_ms())));
    const absl::Status flushed = store_.Flush();
    out.set_flushed(flushed.ok());
    out.set_flush_error(std::string(flushed.message()));
  }
  const MetricsSnapshot left = snapshot_();
  out.set_put_streams(metrics_.open_streams(StreamKind::kPut));
  out.set_get_streams(metrics_.open_streams(StreamKind::kGet));
  out.set_direct_connections(left.direct_connections);
  out.set_local_sessions(left.local_sessions);
  return absl::OkStatus();
}

}  // namespace kvstow
