#include "client/connection/client_core.h"

#include <utility>

#include "base/status_macros.h"
#include "client/connection/unary_call.h"
#include "proto/wire/chunk.h"

namespace kvstow {
namespace {

constexpr Duration kAskTime = std::chrono::seconds(1);

// Blocks at most the timeout.
absl::StatusOr<v1::OpenLocalResponse> AskForLocal(RpcCore& core) {
  KVSTOW_ASSIGN_OR_RETURN(
      const grpc::ByteBuffer answer,
      CallUnary(core, "/kvstow.v1.KvCache/OpenLocal", WriteMessage(v1::OpenLocalRequest())));
  v1::OpenLocalResponse response;
  KVSTOW_RETURN_IF_ERROR(ReadMessage(answer, response));
  return response;
}

absl::StatusOr<DirectPool::Offer> AskForDirect(RpcCore& core) {
  KVSTOW_ASSIGN_OR_RETURN(
      const grpc::ByteBuffer answer,
      CallUnaryOnce(core, "/kvstow.v1.KvCache/OpenDirect", WriteMessage(v1::OpenDirectRequest()),
                    Clock::Real().Now() + kAskTime));
  v1::OpenDirectResponse response;
  KVSTOW_RETURN_IF_ERROR(ReadMessage(answer, response));
  return DirectPool::Offer{static_cast<int>(response.port()), response.ticket()};
}

}  // namespace

ClientCore::ClientCore(ClientOptions o)
    : RpcCore(std::move(o)),
      local({options.shared_bytes, options.timeout, options.gpu, options.gpu_shared_bytes},
            [this] { return AskForLocal(*this); }),
      direct(options.address, options.direct_connections, channels.tls(),
             [this] { return AskForDirect(*this); }) {}

// Ends the calls first, then the connections that may still hold bytes of the caller's. Callbacks
// are last.
void ClientCore::Close() {
  calls.Close();
  executor.Hurry();
  channels.CloseBulk();
  local.Close();
  direct.Close();
  calls.WaitForAll();
}

}  // namespace kvstow
