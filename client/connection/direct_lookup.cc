#include "client/connection/direct_lookup.h"

#include "base/status_macros.h"
#include "client/connection/attempts.h"
#include "kvstow/v1/direct.pb.h"
#include "proto/wire/direct_socket.h"

namespace kvstow {
namespace {

constexpr int kMostLookedUp = 768;  // keys, of at most 64 bytes

}  // namespace

absl::StatusOr<std::optional<v1::LookupResponse>> LookupDirect(ClientCore& core, Node& node,
                                                               const v1::LookupRequest& request,
                                                               Time deadline) {
  if (!core.options_status.ok() || request.keys_size() > kMostLookedUp) return std::nullopt;
  if (request.fingerprint().empty()) return std::nullopt;
  DirectPool::Connection* const connection = node.direct.Take();
  if (connection == nullptr) return std::nullopt;
  std::optional<v1::LookupResponse> response;
  const absl::Status asked = node.direct.RunHere(connection, [&](const DirectSocket& socket) {
    v1::DirectRequest frame;
    request.SerializeToString(frame.mutable_lookup());
    KVSTOW_RETURN_IF_ERROR(socket.Send(frame, {}, 0, deadline));
    v1::DirectReply reply;
    uint64_t bytes = 0;
    KVSTOW_RETURN_IF_ERROR(socket.ReceiveFrame(reply, bytes, deadline));
    if (reply.has_refused()) return absl::OkStatus();
    if (!response.emplace().ParseFromString(reply.looked_up()) || bytes != 0)
      return absl::InternalError("the server sent something else than what was looked up");
    return absl::OkStatus();
  });
  if (absl::IsDeadlineExceeded(asked)) {
    core.nodes.Failed(node, asked);
    return Explain(asked, core.options.address);
  }
  if (!asked.ok()) response.reset();
  return response;
}

}  // namespace kvstow
