#include "client/connection/space_opening.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/connection/raw_stream.h"
#include "client/connection/unary_call.h"
#include "client/payload/messages.h"
#include "proto/wire/chunk.h"

namespace kvstow {
namespace {

constexpr char kMethod[] = "/kvstow.v1.KvCache/OpenSpace";

v1::OpenSpaceRequest RequestOf(absl::string_view name) {
  v1::OpenSpaceRequest request;
  request.set_space(std::string(name));
  return request;
}

absl::Status IsAnother(absl::string_view name) {
  return absl::FailedPreconditionError(
      absl::StrCat("space '", name, "' on the server is another one than this client opened: ",
                   "open it with a spec to see what differs, or use another name"));
}

// Returns the options that open the same space once more. Where it was found by its name, what its
// recipe means is in its pipeline alone.
SpaceOptions AgainOf(const SpaceInfo& info, const v1::OpenSpaceRequest& request) {
  return {.name = info.name,
          .spec = info.spec,
          .recipe = request.has_spec() ? info.recipe : info.pipeline,
          .fidelity = info.fidelity,
          .is_private = info.is_private,
          .queries = request.queries(),
          .normed_keys = request.normed_keys()};
}

absl::StatusOr<SpaceInfo> Note(ClientCore& core, const v1::OpenSpaceRequest& request,
                               const v1::OpenSpaceResponse& response, Payload payload) {
  KVSTOW_ASSIGN_OR_RETURN(SpaceInfo info, SpaceInfoOf(request.space(), response, payload));
  const std::string known = core.payloads.Find(info.name)->fingerprint;
  if (!request.has_spec() && !known.empty() && known != info.fingerprint) {
    return IsAnother(info.name);
  }
  info.put_encoded =
      core.payloads.Add(info, response.put_pipeline(), payload, AgainOf(info, request));
  core.nodes.current().direct.Warm();  // pages will follow
  return info;
}

absl::StatusOr<SpaceInfo> Open(ClientCore& core, const v1::OpenSpaceRequest& request,
                               Payload payload, Time deadline) {
  KVSTOW_ASSIGN_OR_RETURN(const Answer answer,
                          CallUnary(core, kMethod, WriteMessage(request), deadline));
  v1::OpenSpaceResponse response;
  KVSTOW_RETURN_IF_ERROR(ReadMessage(answer.message, response));
  return Note(core, request, response, payload);
}

// One attempt to open a space once more.
class Opening final : public StreamHandler {
 public:
  Opening(ClientCore& core, const std::string& space, std::function<void(const absl::Status&)> done)
      : core_(core), known_(core.payloads.Find(space)), done_(std::move(done)) {
    request_ = known_->fingerprint.empty() ? RequestOf(space) : RequestOf(known_->again);
  }

  Outgoing Next() override { return {.message = WriteMessage(request_), .last = true}; }
  absl::Status OnMessage(const grpc::ByteBuffer& message) override {
    return ReadMessage(message, response_.emplace());
  }
  void OnEnd(const absl::Status& status) override { done_(status.ok() ? Take() : status); }

 private:
  absl::Status Take() {
    if (!response_.has_value()) return absl::InternalError("the server opened no space");
    if (known_->fingerprint.empty()) {
      return Note(core_, request_, *response_, core_.options.payload).status();
    }
    if (known_->fingerprint == response_->fingerprint()) return absl::OkStatus();
    return IsAnother(request_.space());
  }

  ClientCore& core_;
  const std::shared_ptr<SpacePayload> known_;
  v1::OpenSpaceRequest request_;
  std::optional<v1::OpenSpaceResponse> response_;
  const std::function<void(const absl::Status&)> done_;
};

}  // namespace

absl::StatusOr<SpaceInfo> OpenSpace(ClientCore& core, const SpaceOptions& options,
                                    Payload payload) {
  return Open(core, RequestOf(options), payload, core.Deadline());
}

absl::StatusOr<SpaceInfo> FindSpace(ClientCore& core, absl::string_view name) {
  return Open(core, RequestOf(name), core.options.payload, core.Deadline());
}

bool IsOtherSpace(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsNotFound(status);
}

bool IsStale(ClientCore& core, const SpaceInfo& space) {
  if (space.fingerprint.empty()) return false;
  const std::string known = core.payloads.Find(space.name)->fingerprint;
  if (!known.empty()) return known != space.fingerprint;
  (void)core.payloads.Add(space, /*put_pipeline=*/"", core.options.payload, AgainOf(space, {}));
  return false;
}

absl::Status OpenAgain(ClientCore& core, const std::string& space, Time deadline) {
  const std::shared_ptr<SpacePayload> known = core.payloads.Find(space);
  if (known->fingerprint.empty()) {
    return Open(core, RequestOf(space), core.options.payload, deadline).status();
  }
  v1::OpenSpaceResponse response;
  KVSTOW_ASSIGN_OR_RETURN(
      const Answer answer,
      CallUnary(core, kMethod, WriteMessage(RequestOf(known->again)), deadline));
  KVSTOW_RETURN_IF_ERROR(ReadMessage(answer.message, response));
  return response.fingerprint() == known->fingerprint ? absl::OkStatus() : IsAnother(space);
}

void OpenAgain(ClientCore& core, const std::string& space, Attempts& attempts,
               std::function<void(const absl::Status&)> then) {
  Node& node = core.nodes.current();
  const auto done = [&core, &node, space, &attempts,
                     then = std::move(then)](const absl::Status& status) {
    core.executor.Run([&core, &node, space, &attempts, then, status] {
      if (status.ok() || core.calls.closed()) return then(status);
      const auto wait = core.nodes.Failed(node, status) ? attempts.Elsewhere(status)
                                                        : attempts.Next(status, false);
      if (!wait) return then(status);
      core.executor.RunAfter(
          *wait, [&core, space, &attempts, then] { OpenAgain(core, space, attempts, then); });
    });
  };
  RawStream::Start(core, node.channels.metadata(), kMethod, attempts.deadline(),
                   std::make_shared<Opening>(core, space, done));
}

}  // namespace kvstow
