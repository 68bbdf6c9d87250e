#include "client/get_call.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/convert.h"
#include "client/page_landing.h"
#include "client/raw_stream.h"
#include "client/space_opening.h"
#include "proto/wire/chunk.h"

namespace kvstow {
namespace {

constexpr char kMethod[] = "/kvstow.v1.KvCache/Get";
constexpr size_t kPagesPerMessage = 256;
constexpr size_t kMostAsked = 32'768;  // and not answered; servers take twice as many

struct GetCall {
  ClientCore& core;
  GetBatch batch;
  std::shared_ptr<SpacePayload> payload;
  Answers<GetResult> answers;
  Attempts attempts;
  bool opened_again = false;  // the space

  void Answer(size_t page, GetResult result) {
    if (batch.each) batch.each(page, result);
    answers.Set(page, std::move(result));
  }
};

void StartStream(std::shared_ptr<GetCall> call);

// On the executor: the results go to the caller.
void Finish(GetCall& call) {
  call.batch.done(call.answers.Take());
  call.core.calls.RemoveBatch();
}

void Fail(GetCall& call, const absl::Status& status) {
  const absl::Status why = Explain(status, call.core.options.address);
  for (const size_t i : call.answers.Missing()) {
    call.Answer(i, {.outcome = OutcomeOfFailedGet(why), .message = std::string(why.message())});
  }
  Finish(call);
}

// The space is opened, and the stream starts.
void OpenAndStart(const std::shared_ptr<GetCall>& call) {
  OpenAgain(call->core, call->batch.space, call->attempts, [call](const absl::Status& status) {
    if (!status.ok()) return Fail(*call, status);
    call->payload = call->core.payloads.Find(call->batch.space);
    StartStream(call);
  });
}

// On the executor, when a stream is over.
void AfterStream(std::shared_ptr<GetCall> call, absl::Status status, size_t asked) {
  const size_t left = call->answers.Missing().size();
  if (left == 0) return Finish(*call);
  if (status.ok()) status = absl::InternalError("the server ended the stream without an answer");
  ClientCore& core = call->core;
  if (IsOtherSpace(status) && !std::exchange(call->opened_again, true)) return OpenAndStart(call);
  const auto wait = core.calls.closed() ? std::nullopt : call->attempts.Next(status, left < asked);
  if (!wait) return Fail(*call, status);
  core.executor.RunAfter(*wait, [call = std::move(call)] { StartStream(call); });
}

// On the executor: what has no answer is asked for once more, and the server checks it.
void AskAgain(std::shared_ptr<GetCall> call) {
  call->batch.checked = false;
  StartStream(std::move(call));
}

// One stream: asks for pages, grants credit as payload arrives, and puts payload in place.
class GetStream final : public StreamHandler {
 public:
  explicit GetStream(std::shared_ptr<GetCall> call)
      : call_(std::move(call)),
        todo_(call_->answers.Missing()),
        kind_{.encoded = !call_->batch.summaries && call_->payload->get.EncodedNext(),
              .summaries = call_->batch.summaries} {
    for (const size_t i : todo_)
      wanted_bytes_ += PayloadLimit(call_->batch.pages[i], *call_->payload, kind_);
  }

  // Grants no more than can come, so that after the last grant the stream is closed on our side and
  // the server ends it with its last page.
  Outgoing Next() override {
    if (left() == 0) return {.last = true};
    v1::GetRequest message;
    if (asked_ == 0) {
      message.mutable_open()->set_space(call_->batch.space);
      message.mutable_open()->set_fingerprint(call_->payload->fingerprint);
      message.mutable_open()->set_payload(kind_.summaries ? v1::SUMMARY
                                          : kind_.encoded ? v1::ENCODED
                                                          : v1::RAW);
      message.mutable_open()->set_lease(call_->batch.lease);
      message.mutable_open()->set_checked(call_->batch.checked);
    }
    const uint64_t window = call_->core.options.get_window_bytes;
    const uint64_t grant = std::min(window - (granted_ - received_), wanted_bytes_ - granted_);
    const bool worth_it = grant >= window / 4 || (grant > 0 && granted_ + grant == wanted_bytes_);
    const size_t more = std::min(kPagesPerMessage, todo_.size() - asked_);
    const bool ask = more > 0 && asked_ - answered_ + more <= kMostAsked;
    if (!ask && !worth_it) return {};
    for (size_t n = 0; ask && n < more; ++n, ++asked_) {
      v1::GetPage& page = *message.add_pages();
      ToProto(call_->batch.pages[todo_[asked_]], page);
      page.set_page(asked_ + 1);
    }
    if (worth_it) {
      message.set_credit_bytes(grant);
      granted_ += grant;
    }
    return {.message = WriteMessage(message),
            .last = asked_ == todo_.size() && granted_ == wanted_bytes_};
  }

  absl::Status OnMessage(const grpc::ByteBuffer& message) override {
    if (call_ == nullptr) return absl::InternalError("the server sent more than was asked for");
    v1::GetResponse response;
    KVSTOW_ASSIGN_OR_RETURN(const ChunkPayload payload, ReadChunk(message, response));
    if (response.has_begin()) KVSTOW_RETURN_IF_ERROR(BeginPage(response));
    if (payload.bytes > 0) KVSTOW_RETURN_IF_ERROR(TakePayload(response, payload));
    if (left() == 0) GoOn(absl::OkStatus());
    return absl::OkStatus();
  }

  void OnEnd(const absl::Status& status) override {
    if (call_ != nullptr) GoOn(status);
  }

 private:
  size_t left() const { return todo_.size() - answered_; }
  // Lets the call go: with its last answer, for the end of the stream brings nothing more, or with
  // the stream.
  void GoOn(const absl::Status& status) {
    if (!call_->batch.summaries) {
      call_->payload->get.Took(kind_.encoded, raw_bytes_, Clock::Real().Now() - start_);
    }
    Executor& executor = call_->core.executor;
    executor.Run([call = std::move(call_), status, asked = todo_.size(), again = again_]() mutable {
      if (again) return AskAgain(std::move(call));
      AfterStream(std::move(call), status, asked);
    });
  }
  absl::Status BeginPage(const v1::GetResponse& response) {
    const uint64_t page = response.page();
    if (current_ != 0 || page != answered_ + 1 || page > asked_) {
      return absl::InternalError(
          absl::StrCat("the server sent page ", page, ", which was not due"));
    }
    const PageGet& asked = call_->batch.pages[todo_[page - 1]];
    KVSTOW_RETURN_IF_ERROR(CheckKey(asked.key, response.begin()));
    landing_.emplace(asked, *call_->payload, kind_, call_->core.options, call_->batch.decoder);
    if (absl::Status s = landing_->Begin(response.begin()); !s.ok()) {
      // The pages after it come over another stream.
      KVSTOW_RETURN_IF_ERROR(EndPage(page));
      return s;
    }
    current_ = page;
    return landing_->whole() ? EndPage(page) : absl::OkStatus();
  }

  absl::Status TakePayload(const v1::GetResponse& response, const ChunkPayload& payload) {
    if (current_ == 0 || response.page() != current_ || response.offset() != landing_->filled() ||
        payload.bytes > landing_->left() || payload.bytes > granted_ - received_) {
      return absl::InternalError(absl::StrCat("the server sent ", payload.bytes,
                                              " bytes at offset ", response.offset(), " of page ",
                                              response.page(), ", which were not due"));
    }
    for (const grpc::Slice& slice : payload.slices) Place({slice.begin(), slice.size()});
    received_ += payload.bytes;
    return landing_->whole() ? EndPage(current_) : absl::OkStatus();
  }

  void Place(std::span<const uint8_t> bytes) {
    while (!bytes.empty()) {
      const std::span<uint8_t> room = landing_->Room();
      const size_t n = std::min(bytes.size(), room.size());
      std::memcpy(room.data(), bytes.data(), n);
      landing_->Filled(n);
      bytes = bytes.subspan(n);
    }
  }

  absl::Status EndPage(uint64_t page) {
    current_ = 0;
    KVSTOW_ASSIGN_OR_RETURN(GetResult result, landing_->Finish());
    ++answered_;
    if (landing_->damaged() && call_->batch.checked) {
      again_ = true;
      return absl::OkStatus();
    }
    raw_bytes_ += result.bytes;
    call_->Answer(todo_[page - 1], std::move(result));
    return absl::OkStatus();
  }

  std::shared_ptr<GetCall> call_;   // null once all is answered
  const std::vector<size_t> todo_;  // pages of this stream, page number - 1 -> place in the batch
  const LandingKind kind_;
  const Time start_ = Clock::Real().Now();
  uint64_t raw_bytes_ = 0;  // that came, once decoded
  size_t asked_ = 0, answered_ = 0;
  bool again_ = false;  // a page was damaged: it is to be checked by the server
  uint64_t wanted_bytes_ = 0, granted_ = 0, received_ = 0;
  uint64_t current_ = 0;                // the page that is arriving; 0 = none
  std::optional<PageLanding> landing_;  // of it
};

void StartStream(std::shared_ptr<GetCall> call) {
  ClientCore& core = call->core;
  const std::shared_ptr<grpc::Channel> channel = core.channels.bulk();
  if (channel == nullptr) {
    core.executor.Run([call] { Fail(*call, absl::CancelledError("the client was closed")); });
    return;
  }
  const Time deadline = call->attempts.deadline();
  RawStream::Start(core, channel, kMethod, deadline, std::make_shared<GetStream>(std::move(call)));
}

}  // namespace

void StartGet(ClientCore& core, GetBatch batch, Time deadline) {
  const size_t n = batch.pages.size();
  std::shared_ptr<SpacePayload> payload = core.payloads.Find(batch.space);
  auto call = std::make_shared<GetCall>(GetCall{core, std::move(batch), std::move(payload),
                                                Answers<GetResult>(n),
                                                Attempts(core.options.attempts, deadline)});
  core.calls.AddBatch();
  for (size_t i = 0; i < n; ++i) {
    if (!call->batch.pages[i].on_gpu) continue;
    call->Answer(i, {.outcome = PageOutcome::kNotCompatible, .message = std::string(kNotOnGpu)});
  }
  const bool any_left = !call->answers.Missing().empty();
  if (core.options_status.ok() && any_left) {
    return call->payload->fingerprint.empty() ? OpenAndStart(call) : StartStream(std::move(call));
  }
  // Callbacks run on the executor, also when there is nothing to fetch.
  core.executor.Run([call = std::move(call)] {
    if (!call->core.options_status.ok()) return Fail(*call, call->core.options_status);
    Finish(*call);
  });
}

}  // namespace kvstow
