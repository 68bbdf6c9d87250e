#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/connection/raw_stream.h"
#include "client/payload/messages.h"
#include "client/payload/page_landing.h"
#include "client/transport/stream_call.h"
#include "proto/wire/chunk.h"

namespace kvstow {
namespace {

using GetCall = StreamCall<GetBatch>;

constexpr char kMethod[] = "/kvstow.v1.KvCache/Get";
constexpr size_t kPagesPerMessage = 256;
constexpr size_t kMostAsked = 32'768;  // pages without an answer; servers take twice as many

// One stream: asks for pages, grants credit as payload arrives, and puts payload in place.
class GetStream final : public StreamHandler {
 public:
  explicit GetStream(std::shared_ptr<GetCall> call)
      : call_(std::move(call)),
        batch_(*call_->batch),
        todo_(batch_.Missing()),
        lease_(call_->core.nodes.LeaseAt(*call_->node, batch_.lease)),
        kind_{.encoded = !batch_.summaries && batch_.payload->get.EncodedNext(),
              .summaries = batch_.summaries},
        trip_{batch_.payload->get, kind_.encoded} {
    for (const size_t i : todo_)
      wanted_bytes_ += PayloadLimit(batch_.pages[i], *batch_.payload, kind_);
  }

  // Grants no more than can come. So after the last grant the client's side is closed, and the
  // server ends the stream with its last page.
  Outgoing Next() override {
    if (left() == 0) return {.last = true};
    v1::GetRequest message;
    if (asked_ == 0) {
      message.mutable_open()->set_space(batch_.space);
      message.mutable_open()->set_fingerprint(batch_.payload->fingerprint);
      message.mutable_open()->set_payload(kind_.summaries ? v1::SUMMARY
                                          : kind_.encoded ? v1::ENCODED
                                                          : v1::RAW);
      message.mutable_open()->set_lease(lease_);
      message.mutable_open()->set_checked(batch_.checked);
    }
    const uint64_t window = call_->core.options.get_window_bytes;
    const uint64_t grant = std::min(window - (granted_ - received_), wanted_bytes_ - granted_);
    const bool worth_it = grant >= window / 4 || (grant > 0 && granted_ + grant == wanted_bytes_);
    const size_t more = std::min(kPagesPerMessage, todo_.size() - asked_);
    const bool ask = more > 0 && asked_ - answered_ + more <= kMostAsked;
    if (!ask && !worth_it) return {};
    for (size_t n = 0; ask && n < more; ++n, ++asked_) {
      v1::GetPage& page = *message.add_pages();
      ToProto(batch_.pages[todo_[asked_]], page);
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
  // Lets the call go, with its last answer or with the stream. After the last answer, the end of
  // the stream brings nothing more.
  void GoOn(const absl::Status& status) {
    if (!kind_.summaries) trip_.End();
    Executor& executor = call_->core.executor;
    executor.Run([call = std::move(call_), status, asked = todo_.size(), damaged = damaged_,
                  foreign = foreign_lease_, again = lacks_calibration_ || misfit_]() mutable {
      if ((!damaged && !foreign && !again) || call->batch->AllAnswered())
        return AfterStream(std::move(call), status, asked);
      if (damaged) call->batch->checked = false;
      if (foreign) call->batch->lease = 0;
      StartStream(std::move(call));
    });
  }
  absl::Status BeginPage(const v1::GetResponse& response) {
    const uint64_t page = response.page();
    if (current_ != 0 || page != answered_ + 1 || page > asked_) {
      return absl::InternalError(
          absl::StrCat("the server sent page ", page, ", which was not due"));
    }
    const PageGet& asked = batch_.pages[todo_[page - 1]];
    KVSTOW_RETURN_IF_ERROR(CheckKey(asked.key, response.begin()));
    landing_.emplace(asked, *batch_.payload, kind_, call_->core.options, batch_.decoder);
    if (absl::Status s = landing_->Begin(response.begin()); !s.ok()) {
      // The pages after it come over another stream, at once: the server is well.
      misfit_ = true;
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
    if (landing_->damaged() && batch_.checked) {
      damaged_ = true;
      return absl::OkStatus();
    }
    if (landing_->lacks_calibration()) {
      batch_.payload->get.StayRaw();
      lacks_calibration_ = true;
      return absl::OkStatus();
    }
    if (IsForeignLease(call_->core, *call_->node, lease_, result.outcome)) {
      foreign_lease_ = true;
      return absl::OkStatus();
    }
    trip_.raw_bytes += result.bytes;
    batch_.Answer(todo_[page - 1], std::move(result));
    return absl::OkStatus();
  }

  std::shared_ptr<GetCall> call_;   // null once all is answered
  GetBatch& batch_;                 // the call's: nobody uses it after call_
  const std::vector<size_t> todo_;  // pages of this stream, page number - 1 -> place in the batch
  const uint64_t lease_;            // that the node is told of
  const LandingKind kind_;
  Trip trip_;
  size_t asked_ = 0, answered_ = 0;
  bool damaged_ = false;            // some page was; the server then checks
  bool foreign_lease_ = false;      // the node does not know the lease
  bool lacks_calibration_ = false;  // some page must come raw
  bool misfit_ = false;             // a page does not fit its buffer, which ended the stream
  uint64_t wanted_bytes_ = 0, granted_ = 0, received_ = 0;
  uint64_t current_ = 0;                // the page that is arriving; 0 = none
  std::optional<PageLanding> landing_;  // of it
};

}  // namespace

void StartStream(std::shared_ptr<GetCall> call) {
  ClientCore& core = call->core;
  call->node = &core.nodes.current();
  const std::shared_ptr<grpc::Channel> channel = call->node->channels.bulk();
  if (channel == nullptr) return Fail(*call, absl::CancelledError("the client was closed"));
  const Time deadline = call->attempts.deadline();
  RawStream::Start(core, channel, kMethod, deadline, std::make_shared<GetStream>(std::move(call)));
}

}  // namespace kvstow
