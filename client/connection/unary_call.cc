#include "client/connection/unary_call.h"

#include <grpcpp/generic/generic_stub.h>

#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "client/connection/attempts.h"
#include "client/connection/raw_stream.h"

namespace kvstow {
namespace {

// Waits for one value from another thread.
template <typename T>
class Mailbox {
 public:
  void Put(T value) {
    MutexLock lock(mu_);
    value_ = std::move(value);
    set_.NotifyAll();
  }
  T Wait() {
    MutexLock lock(mu_);
    while (!value_) set_.Wait(mu_);
    return *std::move(value_);
  }

 private:
  Mutex mu_;
  CondVar set_;
  std::optional<T> value_ KVSTOW_GUARDED_BY(mu_);
};

// Names the call in the server's logs, and its trace. Returns the name.
std::string AddIds(const ClientOptions& options, grpc::ClientContext& context) {
  thread_local absl::BitGen random;
  std::string id = absl::StrFormat("%016x", absl::Uniform<uint64_t>(random));
  context.AddMetadata("x-request-id", id);
  if (options.traceparent == nullptr) return id;
  const std::string parent = options.traceparent();
  if (!parent.empty()) context.AddMetadata("traceparent", parent);
  return id;
}

// Tells people what to look for in the server's log, where that may tell more.
absl::Status WithId(const absl::Status& status, absl::string_view id) {
  const bool puzzling = absl::IsDeadlineExceeded(status) || absl::IsInternal(status) ||
                        absl::IsUnknown(status) || absl::IsDataLoss(status);
  if (!puzzling) return status;
  absl::Status named(status.code(), absl::StrCat(status.message(), " (request ", id, ")"));
  status.ForEachPayload(
      [&](absl::string_view key, const absl::Cord& value) { named.SetPayload(key, value); });
  return named;
}

absl::Status Attempt(RpcCore& core, Node& node, const std::string& method,
                     const grpc::ByteBuffer& request, Time deadline, grpc::ByteBuffer& response) {
  grpc::ClientContext context;
  context.set_deadline(WallDeadline(deadline));
  core.token.AddTo(context);
  const std::string id = AddIds(core.options, context);
  Mailbox<absl::Status> done;
  grpc::GenericStub stub(node.channels.metadata());
  stub.UnaryCall(&context, method, grpc::StubOptions(), &request, &response,
                 [&](grpc::Status status) { done.Put(FromGrpc(status, context)); });
  return WithId(done.Wait(), id);
}

// Sends `requests`, which outlive the call, and hands over what comes.
class Listener final : public StreamHandler {
 public:
  Listener(std::span<const grpc::ByteBuffer> requests,
           std::function<void(const grpc::ByteBuffer&)> on_message,
           std::shared_ptr<Mailbox<absl::Status>> done)
      : requests_(requests), on_message_(std::move(on_message)), done_(std::move(done)) {}

  Outgoing Next() override {
    if (requests_.empty()) return {.message = {}, .last = true};
    const grpc::ByteBuffer& next = requests_.front();
    requests_ = requests_.subspan(1);
    return {.message = next, .last = requests_.empty()};
  }
  absl::Status OnMessage(const grpc::ByteBuffer& message) override {
    on_message_(message);
    return absl::OkStatus();
  }
  void OnEnd(const absl::Status& status) override { done_->Put(status); }

 private:
  std::span<const grpc::ByteBuffer> requests_;
  const std::function<void(const grpc::ByteBuffer&)> on_message_;
  const std::shared_ptr<Mailbox<absl::Status>> done_;
};

// One attempt at a call that streams one way or both.
absl::Status AttemptStream(RpcCore& core, Node& node, const std::string& method,
                           std::span<const grpc::ByteBuffer> requests, Time deadline,
                           std::function<void(const grpc::ByteBuffer&)> on_message) {
  const auto done = std::make_shared<Mailbox<absl::Status>>();
  RawStream::Start(core, node.channels.metadata(), method, deadline,
                   std::make_shared<Listener>(requests, std::move(on_message), done));
  return done->Wait();
}

// Tries until an attempt brings an answer or no other attempt is worth it. `only`: not null for a
// call of that node alone.
absl::StatusOr<Answer> Try(
    RpcCore& core, Node* only, Time deadline,
    const std::function<absl::Status(Node&, Time, grpc::ByteBuffer&)>& attempt) {
  if (!core.options_status.ok()) return core.options_status;
  Attempts attempts(core.options.attempts, deadline);
  for (;;) {
    Node& node = only == nullptr ? core.nodes.current() : *only;
    grpc::ByteBuffer response;
    const absl::Status status = attempt(node, attempts.deadline(), response);
    if (status.ok()) return Answer{std::move(response), &node};
    const bool another = core.nodes.Failed(node, status);
    const auto wait = another && only != nullptr ? std::nullopt
                      : another                  ? attempts.Elsewhere(status)
                                                 : attempts.Next(status, /*progress=*/false);
    if (!wait) {
      return Explain(node.channels.WithReason(status, attempts.deadline()), core.options.address);
    }
    std::this_thread::sleep_for(*wait);
  }
}

}  // namespace

absl::StatusOr<Answer> CallUnary(RpcCore& core, const std::string& method,
                                 const grpc::ByteBuffer& request, Time deadline) {
  return Try(core, nullptr, deadline, [&](Node& node, Time until, grpc::ByteBuffer& response) {
    return Attempt(core, node, method, request, until, response);
  });
}

absl::StatusOr<grpc::ByteBuffer> CallUnaryAt(RpcCore& core, Node& node, const std::string& method,
                                             const grpc::ByteBuffer& request) {
  KVSTOW_ASSIGN_OR_RETURN(
      Answer answer,
      Try(core, &node, core.Deadline(), [&](Node& at, Time until, grpc::ByteBuffer& response) {
        return Attempt(core, at, method, request, until, response);
      }));
  return std::move(answer.message);
}

absl::StatusOr<grpc::ByteBuffer> CallUnaryOnce(RpcCore& core, Node& node, const std::string& method,
                                               const grpc::ByteBuffer& request, Time deadline) {
  if (!core.options_status.ok()) return core.options_status;
  grpc::ByteBuffer response;
  const absl::Status status = Attempt(core, node, method, request, deadline, response);
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<grpc::ByteBuffer> CallClientStreaming(RpcCore& core, const std::string& method,
                                                     std::span<const grpc::ByteBuffer> requests,
                                                     Time deadline) {
  KVSTOW_ASSIGN_OR_RETURN(
      Answer answer,
      Try(core, nullptr, deadline, [&](Node& node, Time until, grpc::ByteBuffer& response) {
        return AttemptStream(core, node, method, requests, until,
                             [&](const grpc::ByteBuffer& message) { response = message; });
      }));
  return std::move(answer.message);
}

absl::Status CallServerStreaming(RpcCore& core, const std::string& method,
                                 const grpc::ByteBuffer& request,
                                 std::function<void(const grpc::ByteBuffer&)> on_message) {
  if (!core.options_status.ok()) return core.options_status;
  Node& node = core.nodes.current();
  const absl::Status status =
      AttemptStream(core, node, method, {&request, 1}, core.Deadline(), std::move(on_message));
  if (!status.ok()) core.nodes.Failed(node, status);
  return Explain(status, core.options.address);
}

}  // namespace kvstow
