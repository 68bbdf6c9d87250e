#include "client/connection/client_core.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "client/connection/raw_stream.h"
#include "client/connection/unary_call.h"
#include "proto/wire/chunk.h"

namespace kvstow {
namespace {

constexpr Duration kAskTime = std::chrono::seconds(1);

// Blocks at most the timeout.
absl::StatusOr<v1::OpenLocalResponse> AskForLocal(RpcCore& core, Node& node) {
  KVSTOW_ASSIGN_OR_RETURN(const grpc::ByteBuffer answer,
                          CallUnaryAt(core, node, "/kvstow.v1.KvCache/OpenLocal",
                                      WriteMessage(v1::OpenLocalRequest())));
  v1::OpenLocalResponse response;
  KVSTOW_RETURN_IF_ERROR(ReadMessage(answer, response));
  return response;
}

absl::StatusOr<DirectPool::Offer> AskForDirect(RpcCore& core, Node& node) {
  KVSTOW_ASSIGN_OR_RETURN(
      const grpc::ByteBuffer answer,
      CallUnaryOnce(core, node, "/kvstow.v1.KvCache/OpenDirect",
                    WriteMessage(v1::OpenDirectRequest()), Clock::Real().Now() + kAskTime));
  v1::OpenDirectResponse response;
  KVSTOW_RETURN_IF_ERROR(ReadMessage(answer, response));
  return DirectPool::Offer{static_cast<int>(response.port()), response.ticket()};
}

std::unique_ptr<Node> MakeNode(RpcCore& core, const std::string& address, const std::string& name) {
  // The functions are called once the node is there.
  const auto itself = std::make_shared<Node*>();
  auto node = std::make_unique<Node>(
      address, name, core.options, [&core, itself] { return AskForLocal(core, **itself); },
      [&core, itself] { return AskForDirect(core, **itself); });
  *itself = node.get();
  return node;
}

// Asks a node for its health, as gRPC defines it: a server that drains says NOT_SERVING.
class HealthCheck final : public StreamHandler {
 public:
  explicit HealthCheck(std::function<void(bool)> done) : done_(std::move(done)) {}

  // A HealthCheckRequest for the service kvstow.v1.KvCache.
  Outgoing Next() override {
    const grpc::Slice request(std::string("\x0a\x11") + "kvstow.v1.KvCache");
    return {.message = grpc::ByteBuffer(&request, 1), .last = true};
  }
  // A HealthCheckResponse that says SERVING.
  absl::Status OnMessage(const grpc::ByteBuffer& message) override {
    grpc::Slice all;
    serves_ = message.TrySingleSlice(&all).ok() &&
              std::string(all.begin(), all.end()) == std::string("\x08\x01");
    return absl::OkStatus();
  }
  void OnEnd(const absl::Status& status) override { done_(status.ok() && serves_); }

 private:
  const std::function<void(bool)> done_;
  bool serves_ = false;
};

void AskHealth(RpcCore& core, Node& node, std::function<void(bool serves)> answer) {
  RawStream::Start(core, node.channels.metadata(), "/grpc.health.v1.Health/Check",
                   Clock::Real().Now() + kAskTime,
                   std::make_shared<HealthCheck>([&core, answer = std::move(answer)](bool serves) {
                     core.executor.Run([answer, serves] { answer(serves); });
                   }));
}

Nodes::Parts PartsOf(RpcCore& core) {
  return {.make = [&core](const std::string& at,
                          const std::string& name) { return MakeNode(core, at, name); },
          .ask = [&core](Node& node, auto answer) { AskHealth(core, node, std::move(answer)); }};
}

}  // namespace

ClientCore::ClientCore(ClientOptions o) : RpcCore(std::move(o), PartsOf(*this)) {}

// Ends the calls first, then the connections that may still hold bytes of the caller's. Callbacks
// are last.
void ClientCore::Close() {
  calls.Close();
  executor.Hurry();
  nodes.Close();
  calls.WaitForAll();
}

}  // namespace kvstow
