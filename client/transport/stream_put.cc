#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "client/connection/raw_stream.h"
#include "client/payload/messages.h"
#include "client/payload/put_payload.h"
#include "client/transport/stream_call.h"
#include "proto/wire/chunk.h"

namespace kvstow {
namespace {

using PutCall = StreamCall<PutBatch>;

constexpr char kMethod[] = "/kvstow.v1.KvCache/Put";
constexpr Duration kDrainTime = std::chrono::milliseconds(50);

// Returns bytes [offset, offset + bytes) of `parts`.
std::vector<SharedBytes> Cut(std::span<const SharedBytes> parts, uint64_t offset, uint64_t bytes) {
  std::vector<SharedBytes> out;
  for (const SharedBytes& part : parts) {
    const uint64_t skipped = std::min<uint64_t>(offset, part.size());
    const uint64_t taken = std::min<uint64_t>(bytes, part.size() - skipped);
    if (taken > 0) out.push_back(part.Slice(skipped, taken));
    offset -= skipped;
    bytes -= taken;
  }
  return out;
}

// When the deadline has passed, and bytes of the batch still lie in the connection a little later,
// the peer has stopped reading. Only the end of the connection gives the bytes back; the other
// streams on it go on over a new one.
void FreeBytesSoon(ClientCore& core, Node& node, std::weak_ptr<const PagesInUse> pages,
                   std::shared_ptr<grpc::Channel> channel) {
  core.executor.RunAfter(kDrainTime, [&core, &node, pages = std::move(pages), channel] {
    if (pages.expired()) return;
    node.channels.ReplaceBulk(channel.get());
    core.calls.CancelStreams(channel.get(),
                             absl::UnavailableError("the connection stalled and was replaced"));
  });
}

// One stream: sends pages as far as it has credit, one after the other. It encodes a page before
// the page's first byte.
class PutStream final : public StreamHandler {
 public:
  PutStream(std::shared_ptr<PutCall> call, std::shared_ptr<grpc::Channel> channel)
      : call_(std::move(call)),
        channel_(std::move(channel)),
        batch_(*call_->batch),
        todo_(batch_.Missing()),
        trip_{batch_.payload->put,
              batch_.progress == nullptr && GoEncoded(*batch_.payload, batch_.pages, todo_)} {}

  Outgoing Next() override {
    if (call_ == nullptr) return {.last = true};
    const PutProgress* const progress = batch_.progress.get();
    if (progress != nullptr && progress->given_up()) {
      GiveUp();
      return {.last = true};
    }
    v1::PutRequest message;
    if (!opened_) {
      opened_ = true;
      message.mutable_open()->set_space(batch_.space);
      message.mutable_open()->set_fingerprint(batch_.payload->fingerprint);
      message.mutable_open()->set_payload(trip_.encoded ? v1::ENCODED : v1::RAW);
      return {.message = WriteChunk(message, {})};
    }
    // No page begins without credit: a server that refuses the stream costs no digest.
    while (credit_ > 0 && next_ < todo_.size() && parts_.empty() &&
           !Begin(batch_.pages[todo_[next_]])) {
      ++next_;  // it was answered here
    }
    if (next_ == todo_.size()) return {.last = true};
    if (credit_ == 0) return {};
    const uint64_t all = TotalBytes(parts_);
    const uint64_t ready = progress == nullptr ? all : progress->Ready(all);
    if (ready == sent_) return {};
    message.set_page(next_ + 1);
    message.set_offset(sent_);
    if (sent_ == 0) message.mutable_begin()->Swap(&begin_);
    const uint64_t bytes =
        std::min<uint64_t>({credit_, call_->core.options.chunk_bytes, ready - sent_});
    if (progress != nullptr) {
      digest_.Update(batch_.pages[todo_[next_]].raw.subspan(sent_, bytes));
      if (sent_ + bytes == all) {
        const Digest128 digest = digest_.Finish();
        message.set_digest(digest.bytes.data(), digest.bytes.size());
      }
    }
    const std::vector<SharedBytes> payload = Cut(parts_, sent_, bytes);
    credit_ -= bytes;
    sent_ += bytes;
    if (sent_ == all) {
      ++next_;
      sent_ = 0;
      parts_.clear();
    }
    return {.message = WriteChunk(message, payload)};
  }

  absl::Status OnMessage(const grpc::ByteBuffer& message) override {
    if (call_ == nullptr) return absl::InternalError("the server answered more than was asked");
    v1::PutResponse response;
    if (absl::Status s = ReadMessage(message, response); !s.ok()) return s;
    credit_ += response.credit_bytes();
    for (const v1::PutResult& result : response.results()) {
      const uint64_t page = result.page();
      if (page == 0 || page > todo_.size() || batch_.Has(todo_[page - 1])) {
        return absl::InternalError(
            absl::StrCat("the server answered page ", page, ", which was not asked"));
      }
      if (result.status() == v1::STORED)
        trip_.raw_bytes += batch_.pages[todo_[page - 1]].raw.size();
      batch_.Answer(todo_[page - 1], PutResultOf(result));
      ++answered_;
    }
    // The end of the stream brings nothing more.
    if (answered_ == todo_.size()) LetGo().reset();
    return absl::OkStatus();
  }

  void OnEnd(const absl::Status& status) override {
    if (call_ == nullptr) return;
    ClientCore& core = call_->core;
    core.executor.Run(
        [call = LetGo(), channel = std::move(channel_), status, asked = todo_.size()]() mutable {
          if (absl::IsDeadlineExceeded(status)) {
            FreeBytesSoon(call->core, *call->node, call->in_use, channel);
          }
          AfterStream(std::move(call), status, asked);
        });
  }

 private:
  // Returns the call, whose pages nothing here reads any more.
  std::shared_ptr<PutCall> LetGo() {
    if (batch_.progress == nullptr) trip_.End();
    parts_.clear();
    return std::move(call_);
  }
  void GiveUp() {
    for (const size_t i : batch_.Missing()) {
      batch_.Answer(i, PageOutcome::kRefused, "the put was given up before its layers were filled");
    }
    LetGo().reset();
  }
  // Makes the payload of a page. Returns false, and refuses the page, when it cannot be coded.
  bool Begin(const PagePut& page) {
    const bool filling = batch_.progress != nullptr;
    std::optional<Digest128> digest;
    if (!filling) digest = Xxh3_128(page.raw);
    digest_ = Xxh3Stream();
    absl::StatusOr<PutPayload> payload =
        MakePutPayload(page, *batch_.payload, trip_.encoded, digest, call_->in_use, batch_.coder);
    if (!payload.ok()) {
      batch_.Answer(todo_[next_], PageOutcome::kRefused, payload.status().message());
      ++answered_;
      return false;
    }
    begin_.Swap(&payload->begin);
    parts_ = std::move(payload->parts);
    return true;
  }

  std::shared_ptr<PutCall> call_;  // null once all is answered
  std::shared_ptr<grpc::Channel> channel_;
  PutBatch& batch_;                 // the call's: nobody uses it after call_
  const std::vector<size_t> todo_;  // pages of this stream, page number - 1 -> place in the batch
  Trip trip_;
  bool opened_ = false;
  size_t answered_ = 0;
  size_t next_ = 0;                 // place in todo_ of the page that is being sent
  std::vector<SharedBytes> parts_;  // its payload; empty before Begin
  v1::PutPage begin_;               // what its first message says
  uint64_t sent_ = 0;               // of its bytes
  Xxh3Stream digest_;               // of them, where it is not in begin_
  uint64_t credit_ = 0;             // that the server has granted and we have not used
};

}  // namespace

void StartStream(std::shared_ptr<PutCall> call) {
  ClientCore& core = call->core;
  call->node = &core.nodes.current();
  const std::shared_ptr<grpc::Channel> channel = call->node->channels.bulk();
  if (channel == nullptr) return Fail(*call, absl::CancelledError("the client was closed"));
  const Time deadline = call->attempts.deadline();
  PutProgress* const progress = call->batch->progress.get();
  auto bell = progress == nullptr ? nullptr : progress->NewBell();
  RawStream::Start(core, channel, kMethod, deadline,
                   std::make_shared<PutStream>(std::move(call), channel), std::move(bell));
}

}  // namespace kvstow
