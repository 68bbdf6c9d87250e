#include "client/connection/raw_stream.h"

#include <grpcpp/generic/generic_stub.h>

#include <utility>

#include "absl/strings/cord.h"
#include "proto/wire/chunk.h"

namespace kvstow {

absl::Status FromGrpc(const grpc::Status& grpc_status, const grpc::ClientContext& context) {
  absl::Status status(static_cast<absl::StatusCode>(grpc_status.error_code()),
                      grpc_status.error_message());
  const auto& trailing = context.GetServerTrailingMetadata();
  const auto pushback = trailing.find(kPushbackKey);
  if (pushback != trailing.end()) {
    status.SetPayload(kPushbackKey, absl::Cord(absl::string_view(pushback->second.data(),
                                                                 pushback->second.size())));
  }
  return status;
}

std::chrono::system_clock::time_point WallDeadline(Time deadline) {
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::Real().Now());
}

RawStream::RawStream(RpcCore& core, std::shared_ptr<grpc::Channel> channel, Time deadline,
                     std::shared_ptr<StreamHandler> handler, std::shared_ptr<StreamBell> bell)
    : core_(core),
      channel_(std::move(channel)),
      handler_(std::move(handler)),
      bell_(std::move(bell)) {
  context_.set_deadline(WallDeadline(deadline));
  core.token.AddTo(context_);
}

void RawStream::Start(RpcCore& core, std::shared_ptr<grpc::Channel> channel,
                      const std::string& method, Time deadline,
                      std::shared_ptr<StreamHandler> handler, std::shared_ptr<StreamBell> bell) {
  auto* const stream =
      new RawStream(core, std::move(channel), deadline, std::move(handler), std::move(bell));
  grpc::GenericStub stub(stream->channel_);
  stub.PrepareBidiStreamingCall(&stream->context_, method, grpc::StubOptions(), stream);
  // The stream is held until it is registered: Cancel() must find a call that has begun.
  stream->AddHold();
  if (stream->bell_ != nullptr) {
    stream->AddHold();  // until EndReading()
    MutexLock lock(stream->bell_->mu_);
    stream->bell_->stream_ = stream;
  }
  stream->StartRead(&stream->read_);
  stream->StartCall();
  stream->WriteNext();
  if (!core.calls.Add(stream)) stream->Cancel(absl::CancelledError("the client was closed"));
  stream->RemoveHold();
}

void RawStream::Cancel(const absl::Status& why) {
  {
    MutexLock lock(mu_);
    if (why_.ok()) why_ = why;
  }
  context_.TryCancel();
}

void RawStream::WriteNext() {
  StreamHandler::Outgoing out;
  {
    MutexLock lock(mu_);
    if (writing_ || wrote_last_ || !why_.ok()) return;
    out = handler_->Next();
    if (!out.message && !out.last) return;
    writing_ = true;
    wrote_last_ = out.last;
  }
  if (out.message) write_.Swap(&*out.message);
  // No other thread writes while writing_ is set, and the reaction (or the hold) that called us
  // keeps the stream alive.
  if (!out.message) {
    StartWritesDone();
  } else if (out.last) {
    StartWriteLast(&write_, grpc::WriteOptions());
  } else {
    StartWrite(&write_);
  }
}

// The ringing thread holds the stream. The hold of Start() lasts until EndReading(), so the stream
// cannot be over before.
void StreamBell::Ring() {
  RawStream* stream = nullptr;
  {
    MutexLock lock(mu_);
    if (stream_ == nullptr) return;
    stream = stream_;
    stream->AddHold();
  }
  stream->WriteNext();
  stream->RemoveHold();
}

// Reading is over: the bell does nothing from now on.
void RawStream::EndReading() {
  if (bell_ == nullptr) return;
  {
    MutexLock lock(bell_->mu_);
    bell_->stream_ = nullptr;
  }
  RemoveHold();
}

void RawStream::OnWriteDone(bool ok) {
  if (!ok) return;  // the stream is broken: OnDone() says why
  write_.Clear();
  {
    MutexLock lock(mu_);
    writing_ = false;
  }
  WriteNext();
}

void RawStream::OnReadDone(bool ok) {
  if (!ok) return EndReading();
  absl::Status status;
  {
    MutexLock lock(mu_);
    status = why_.ok() ? handler_->OnMessage(read_) : why_;
    read_.Clear();
  }
  if (!status.ok()) {
    Cancel(status);
    return EndReading();
  }
  StartRead(&read_);
  WriteNext();
}

void RawStream::OnDone(const grpc::Status& grpc_status) {
  core_.calls.Remove(this);
  absl::Status status;
  {
    MutexLock lock(mu_);
    status = why_.ok() ? FromGrpc(grpc_status, context_) : why_;
  }
  // The call goes first, and with it what it holds of the handler's bytes.
  std::shared_ptr<StreamHandler> handler = handler_;
  std::shared_ptr<grpc::Channel> channel = channel_;
  RpcCore& core = core_;
  delete this;
  handler->OnEnd(status);
  // This thread is gRPC's, and the last channel of a process joins gRPC's threads: the executor
  // lets it go.
  core.executor.Run([&core, handler = std::move(handler), channel = std::move(channel)]() mutable {
    handler.reset();
    channel.reset();
    core.calls.Gone();  // now the client may go, and the process end
  });
}

}  // namespace kvstow
