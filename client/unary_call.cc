#include "client/unary_call.h"

#include <grpcpp/generic/generic_stub.h>

#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "client/raw_stream.h"

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

absl::Status Attempt(ClientCore& core, const std::string& method, const grpc::ByteBuffer& request,
                     Time deadline, grpc::ByteBuffer& response) {
  grpc::ClientContext context;
  context.set_deadline(WallDeadline(deadline));
  Mailbox<absl::Status> done;
  grpc::GenericStub stub(core.channels.metadata());
  stub.UnaryCall(&context, method, grpc::StubOptions(), &request, &response,
                 [&](grpc::Status status) { done.Put(FromGrpc(status, context)); });
  return done.Wait();
}

class Listener final : public StreamHandler {
 public:
  Listener(grpc::ByteBuffer request, std::function<void(const grpc::ByteBuffer&)> on_message,
           std::shared_ptr<Mailbox<absl::Status>> done)
      : request_(std::move(request)), on_message_(std::move(on_message)), done_(std::move(done)) {}

  Outgoing Next() override { return {.message = std::move(request_), .last = true}; }
  absl::Status OnMessage(const grpc::ByteBuffer& message) override {
    on_message_(message);
    return absl::OkStatus();
  }
  void OnEnd(const absl::Status& status) override { done_->Put(status); }

 private:
  grpc::ByteBuffer request_;
  const std::function<void(const grpc::ByteBuffer&)> on_message_;
  const std::shared_ptr<Mailbox<absl::Status>> done_;
};

}  // namespace

absl::StatusOr<grpc::ByteBuffer> CallUnary(ClientCore& core, const std::string& method,
                                           const grpc::ByteBuffer& request) {
  if (!core.options_status.ok()) return core.options_status;
  Attempts attempts(core.options.attempts, Clock::Real().Now() + core.options.timeout);
  for (;;) {
    grpc::ByteBuffer response;
    const absl::Status status = Attempt(core, method, request, attempts.deadline(), response);
    if (status.ok()) return response;
    const auto wait = attempts.Next(status, /*progress=*/false);
    if (!wait) return Explain(status, core.options.address);
    std::this_thread::sleep_for(*wait);
  }
}

absl::Status CallServerStreaming(ClientCore& core, const std::string& method,
                                 const grpc::ByteBuffer& request,
                                 std::function<void(const grpc::ByteBuffer&)> on_message) {
  if (!core.options_status.ok()) return core.options_status;
  const auto done = std::make_shared<Mailbox<absl::Status>>();
  RawStream::Start(core, core.channels.metadata(), method,
                   Clock::Real().Now() + core.options.timeout,
                   std::make_shared<Listener>(request, std::move(on_message), done));
  return Explain(done->Wait(), core.options.address);
}

}  // namespace kvstow
