#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/page/encoded_payload.h"
#include "kernels/page/page.h"
#include "proto/wire/chunk.h"
#include "service/pages/attention_columns.h"
#include "service/pages/encoded_put.h"
#include "service/spaces/messages.h"
#include "service/transports/bulk_stream.h"

namespace kvstow {
namespace {

// Answers that may wait for a client that does not read; beyond it, the stream reads no more.
constexpr int kMaxUnreadResults = 1024;
// Whole pages of a stream that may wait for a worker, or have one; beyond it, the stream reads no
// more. Credit alone would let in millions of tiny ones.
constexpr int kMaxWholePages = 64;

class PutStream final : public BulkStream {
 public:
  PutStream(StreamParts& parts, grpc::CallbackServerContext* context)
      : BulkStream(parts, *context, StreamKind::kPut) {}

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;

 private:
  // The page that is being received; touched by the reading side only.
  struct Receiving {
    uint64_t number = 0;
    std::shared_ptr<IncomingPage> page;  // null: answered, and the rest of its chunks is discarded
    uint64_t bytes = 0;                  // received so far
  };

  // The reading side. A status that is not OK ends the stream.
  absl::Status Handle(const grpc::ByteBuffer& message);
  absl::Status Open(const v1::PutRequest& message);
  absl::Status Begin(v1::PutRequest& message);
  absl::Status Chunk(const v1::PutRequest& message, const ChunkPayload& payload);
  void StoreReceived();
  void RefuseReceiving(absl::string_view why);
  void EndReading(absl::Status status);

  // Returns whether the stream has enough to do without reading more.
  bool Full() const KVSTOW_REQUIRES(mu_) {
    const bool unread = writing_ && answers_.results_size() >= kMaxUnreadResults;
    return storing_ >= kMaxWholePages || (unread && !broken_);
  }
  // Returns whether to open a read, which was put off.
  bool Resumes() KVSTOW_REQUIRES(mu_) {
    return !Full() && std::exchange(paused_, false) && !reading_done_;
  }

  // The writing side: any thread. A result, and credit, for the client.
  void Answer(uint64_t number, v1::PutResult result, uint64_t credit, bool from_worker);
  void GrantCredit(uint64_t bytes);
  Next WhatNext() override KVSTOW_REQUIRES(mu_);
  bool Holding() const override KVSTOW_REQUIRES(mu_) { return window_.bytes() > 0; }

  std::shared_ptr<const Space> space_;  // these two are set once, by the first message
  v1::Payload payload_ = v1::RAW;
  Receiving receiving_;
  uint64_t last_page_ = 0;
  std::string last_key_;   // of it
  uint64_t last_end_ = 0;  // position of the token behind it

  v1::PutResponse answers_ KVSTOW_GUARDED_BY(mu_);  // to be written
  uint64_t credit_ KVSTOW_GUARDED_BY(mu_) = 0;      // granted and not yet used
  Admission::Bytes window_ KVSTOW_GUARDED_BY(mu_);
  int storing_ KVSTOW_GUARDED_BY(mu_) = 0;      // whole pages that are not stored yet
  bool paused_ KVSTOW_GUARDED_BY(mu_) = false;  // it was Full, and no read is open
};

void PutStream::OnReadDone(bool ok) {
  if (!ok) {
    if (receiving_.page != nullptr) {
      RefuseReceiving(absl::StrCat("the stream ended after ", receiving_.bytes, " of ",
                                   receiving_.page->page().payload_bytes(), " bytes"));
    }
    EndReading(absl::OkStatus());
    return;
  }
  const absl::Status status = Handle(in_);
  if (status.ok()) {
    {
      MutexLock lock(mu_);
      paused_ = Full();
      if (paused_) return;  // OnWriteDone or a worker goes on
    }
    StartRead(&in_);
    return;
  }
  receiving_.page.reset();
  EndReading(status);
}

void PutStream::EndReading(absl::Status status) {
  Next next;
  {
    MutexLock lock(mu_);
    if (!reading_done_) {  // else the server has ended it
      reading_done_ = true;
      final_ = std::move(status);
    }
    next = Decide();
  }
  Act(this, next);
}

absl::Status PutStream::Handle(const grpc::ByteBuffer& buffer) {
  v1::PutRequest message;
  const auto payload = ReadChunk(buffer, message);
  if (!payload.ok()) return payload.status();
  if (space_ == nullptr) return Open(message);
  if (message.has_open()) return absl::InvalidArgumentError("open: the stream is open already");
  {
    MutexLock lock(mu_);
    if (payload->bytes > credit_) {
      return absl::InvalidArgumentError(absl::StrCat("page ", message.page(), ": ", payload->bytes,
                                                     " bytes came, but only ", credit_,
                                                     " were granted: wait for credit_bytes"));
    }
    credit_ -= payload->bytes;
    Moved();
  }
  if (message.has_begin()) {
    const absl::Status status = Begin(message);
    if (!status.ok()) return status;
  }
  return Chunk(message, *payload);
}

absl::Status PutStream::Open(const v1::PutRequest& message) {
  if (!message.has_open() || message.has_begin()) {
    return absl::InvalidArgumentError("the first message of a Put stream is `open`, and only that");
  }
  if (!v1::Payload_IsValid(message.open().payload())) {
    return absl::InvalidArgumentError(
        absl::StrCat("payload: ", message.open().payload(), " is no value that this server knows"));
  }
  if (message.open().payload() == v1::SUMMARY) {
    return absl::InvalidArgumentError("payload: a summary is no page: put pages RAW or ENCODED");
  }
  auto space = parts_.spaces.Find(*caller_, message.open().space(), message.open().fingerprint(),
                                  SpaceUse::kWrite);
  if (!space.ok()) return space.status();
  payload_ = message.open().payload() == v1::ENCODED ? v1::ENCODED : v1::RAW;
  if (payload_ == v1::ENCODED) {
    if (const absl::Status s = CheckTakesEncoded(**space); !s.ok()) return s;
  }
  space_ = *std::move(space);
  // A page with columns must fit, and the next one should be able to come while it is encoded.
  const uint64_t page = PageBytes(space_->spec, space_->spec.page_tokens) +
                        (payload_ == v1::ENCODED ? kEncodedOverhead : 0) +
                        MostColumnBytes(space_->spec);
  auto window = parts_.admission.TakeWindow(parts_.limits.window_bytes, page);
  if (!window.ok()) return window.status();
  const uint64_t credit = Admission::WindowOf(*window);
  {
    MutexLock lock(mu_);
    window_ = *std::move(window);
  }
  GrantCredit(credit);
  return absl::OkStatus();
}

absl::Status PutStream::Begin(v1::PutRequest& message) {
  if (receiving_.page != nullptr) {
    RefuseReceiving(absl::StrCat("page ", message.page(), " began after ", receiving_.bytes, " of ",
                                 receiving_.page->page().payload_bytes(), " bytes of this one"));
  }
  if (message.page() <= last_page_) {
    return absl::InvalidArgumentError(absl::StrCat("page ", message.page(), " begins after page ",
                                                   last_page_,
                                                   ": numbers start at 1 and must grow"));
  }
  last_page_ = message.page();
  message.mutable_begin()->DiscardUnknownFields();  // they would wait with the page
  const v1::PutPage& begin = message.begin();
  // Pages of a prompt come in its order.
  std::string parent = begin.first_position() == last_end_ ? last_key_ : "";
  last_key_ = begin.key().size() <= kMaxKeyBytes ? begin.key() : "";
  last_end_ = begin.first_position() + begin.tokens();
  receiving_ = {.number = message.page(),
                .page = std::make_shared<IncomingPage>(parts_.puts, *space_, caller_->tenant,
                                                       payload_, begin, std::move(parent))};
  if (auto answer = receiving_.page->Begin()) {
    receiving_.page.reset();
    Answer(receiving_.number, *std::move(answer), 0, false);
    return absl::OkStatus();
  }
  if (const absl::Status s = receiving_.page->Stage(); !s.ok()) RefuseReceiving(s.message());
  return absl::OkStatus();
}

absl::Status PutStream::Chunk(const v1::PutRequest& message, const ChunkPayload& payload) {
  Receiving& r = receiving_;
  if (message.page() != r.number || r.number == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a chunk of page ", message.page(),
                     ", which is not being sent: a page's first chunk has "
                     "`begin`, and the pages' chunks are not mixed"));
  }
  if (r.page == nullptr) {
    GrantCredit(payload.bytes);
    return absl::OkStatus();
  }
  if (payload.bytes == 0 && !message.has_begin()) {
    RefuseReceiving(absl::StrCat("the chunk at offset ", message.offset(), " is empty"));
    return absl::OkStatus();
  }
  uint64_t offset = message.offset();
  absl::Status status;
  for (const grpc::Slice& slice : payload.slices) {
    if (slice.size() == 0) continue;
    status = r.page->Append(offset, std::span(slice.begin(), slice.size()));
    if (!status.ok()) break;
    offset += slice.size();
  }
  r.bytes += payload.bytes;
  if (status.ok() && !message.digest().empty()) status = r.page->SetDigest(message.digest());
  if (!status.ok()) {
    RefuseReceiving(status.message());
  } else if (r.page->whole()) {
    StoreReceived();
  }
  return absl::OkStatus();
}

// Hands the page over to a worker.
void PutStream::StoreReceived() {
  {
    MutexLock lock(mu_);
    if (finished_) return;  // the server has ended it
    ++busy_;
    ++storing_;
  }
  Receiving r = std::exchange(receiving_, {});  // one more chunk of this page ends the stream
  parts_.put_workers.Submit([this, number = r.number, page = std::move(r.page)] {
    v1::PutResult result = page->Store();
    bool resume;
    {
      MutexLock lock(mu_);
      --storing_;
      resume = Resumes();
    }
    if (resume) StartRead(&in_);  // while the stream is busy, and so does not go
    Answer(number, std::move(result), page->page().payload_bytes(), true);
  });
}

// Answers the page that is being received. The rest of its chunks is discarded.
void PutStream::RefuseReceiving(absl::string_view why) {
  v1::PutResult refused = std::exchange(receiving_.page, nullptr)->Refuse(why);
  Answer(receiving_.number, std::move(refused), receiving_.bytes, false);
}

void PutStream::Answer(uint64_t number, v1::PutResult result, uint64_t credit, bool from_worker) {
  result.set_page(number);
  Next next;
  {
    MutexLock lock(mu_);
    *answers_.add_results() = std::move(result);
    answers_.set_credit_bytes(answers_.credit_bytes() + credit);
    credit_ += credit;
    if (from_worker) --busy_;
    next = Decide();
  }
  Act(this, next);
}

void PutStream::GrantCredit(uint64_t bytes) {
  Next next;
  {
    MutexLock lock(mu_);
    answers_.set_credit_bytes(answers_.credit_bytes() + bytes);
    credit_ += bytes;
    next = Decide();
  }
  Act(this, next);
}

PutStream::Next PutStream::WhatNext() {
  if (writing_ || finished_) return Next::kNothing;
  if (!broken_ && (answers_.results_size() > 0 || answers_.credit_bytes() > 0)) {
    out_ = WriteMessage(answers_);
    answers_.Clear();
    writing_ = true;
    return Next::kWrite;
  }
  if (reading_done_ && busy_ == 0) {
    finished_ = true;
    return Next::kFinish;
  }
  return Next::kNothing;
}

void PutStream::OnWriteDone(bool ok) {
  Next next;
  bool resume;
  {
    MutexLock lock(mu_);
    writing_ = false;
    if (!ok) broken_ = true;
    next = Decide();
    resume = Resumes();
  }
  Act(this, next);
  if (resume) StartRead(&in_);
}

// The open read fails now, and ends the stream. Where none is open, reading ends here; then it is a
// write or a page that comes back, and Decide() finishes.
void PutStream::OnCancel() {
  Next next;
  {
    MutexLock lock(mu_);
    broken_ = true;
    if (std::exchange(paused_, false)) reading_done_ = true;
    next = Decide();
  }
  Act(this, next);
}

}  // namespace

RawReactor* NewPutStream(StreamParts& parts, grpc::CallbackServerContext* context,
                         absl::StatusOr<CallerPtr> caller) {
  return BulkStream::Start(std::make_shared<PutStream>(parts, context), std::move(caller));
}

}  // namespace kvstow
