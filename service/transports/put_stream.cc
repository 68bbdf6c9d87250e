#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/page/encoded_payload.h"
#include "proto/wire/chunk.h"
#include "service/pages/encoded_put.h"
#include "service/spaces/convert.h"
#include "service/transports/bulk_stream.h"

namespace kvstow {
namespace {

// Answers that may wait for a client that does not read; beyond it, the stream reads no more.
constexpr int kMaxUnreadResults = 1024;

class PutStream final : public BulkStream {
 public:
  PutStream(StreamParts& parts, grpc::CallbackServerContext* context)
      : BulkStream(parts, *context, StreamKind::kPut) {}
  ~PutStream() override {
    if (receiving_.ticket != 0) parts_.staging.Abort(receiving_.ticket);
  }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;

 private:
  // The page that is being received; touched by the reading side only.
  struct Receiving {
    uint64_t number = 0;
    v1::PutPage begin;
    std::string parent_key;      // see PageToStore
    uint64_t bytes = 0;          // received so far
    Staging::Ticket ticket = 0;  // 0: answered already, the rest of its chunks is discarded
    std::optional<PageDigester> digests;  // of a raw page; its columns follow
  };

  // The reading side. A status that is not OK ends the stream.
  absl::Status Handle(const grpc::ByteBuffer& message);
  absl::Status Open(const v1::PutRequest& message);
  absl::Status Begin(const v1::PutRequest& message);
  absl::Status Chunk(const v1::PutRequest& message, const ChunkPayload& payload);
  absl::Status TakeDigest(const v1::PutRequest& message);
  void RefuseReceiving(absl::string_view why);
  void EndReading(absl::Status status);

  // On a worker thread.
  void Store(uint64_t number, const v1::PutPage& page, std::string parent_key,
             Staging::Ticket ticket, const std::optional<PageDigests>& came);

  // The writing side: any thread. A result, and credit, for the client.
  void Answer(uint64_t number, v1::PutResult result, uint64_t credit, bool from_worker,
              uint64_t raw_bytes = 0);
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
  bool paused_ KVSTOW_GUARDED_BY(mu_) = false;  // no read is open until the write is done
};

void PutStream::OnReadDone(bool ok) {
  if (!ok) {
    if (receiving_.ticket != 0) {
      RefuseReceiving(absl::StrCat("the stream ended after ", receiving_.bytes, " of ",
                                   receiving_.begin.payload_bytes(), " bytes"));
    }
    EndReading(absl::OkStatus());
    return;
  }
  const absl::Status status = Handle(in_);
  if (status.ok()) {
    {
      MutexLock lock(mu_);
      paused_ = writing_ && !broken_ && answers_.results_size() >= kMaxUnreadResults;
      if (paused_) return;  // OnWriteDone goes on
    }
    StartRead(&in_);
    return;
  }
  if (receiving_.ticket != 0) parts_.staging.Abort(receiving_.ticket);
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
  auto space = parts_.spaces.Find(message.open().space(), message.open().fingerprint());
  if (!space.ok()) return space.status();
  payload_ = message.open().payload() == v1::ENCODED ? v1::ENCODED : v1::RAW;
  if (payload_ == v1::ENCODED) {
    if (const absl::Status s = CheckTakesEncoded(**space); !s.ok()) return s;
  }
  space_ = *std::move(space);
  // A page must fit, and the next one should be able to come while it is encoded.
  const uint64_t page = PageBytes(space_->spec, space_->spec.page_tokens) +
                        (payload_ == v1::ENCODED ? kEncodedOverhead : 0);
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

absl::Status PutStream::Begin(const v1::PutRequest& message) {
  if (receiving_.ticket != 0) {
    RefuseReceiving(absl::StrCat("page ", message.page(), " began after ", receiving_.bytes, " of ",
                                 receiving_.begin.payload_bytes(), " bytes of this one"));
  }
  if (message.page() <= last_page_) {
    return absl::InvalidArgumentError(absl::StrCat("page ", message.page(), " begins after page ",
                                                   last_page_,
                                                   ": numbers start at 1 and must grow"));
  }
  last_page_ = message.page();
  receiving_ = {.number = message.page(), .begin = message.begin()};
  const v1::PutPage& page = receiving_.begin;
  // Pages of a prompt come in its order.
  if (page.first_position() == last_end_) receiving_.parent_key = last_key_;
  last_key_ = page.key();
  last_end_ = page.first_position() + page.tokens();
  if (const absl::Status s = parts_.writer.Check(*space_, payload_, page); !s.ok()) {
    RefuseReceiving(s.message());
    return absl::OkStatus();
  }
  if (auto there = parts_.writer.AlreadyThere(*space_, page)) {
    Answer(receiving_.number, *std::move(there), 0, false);
    return absl::OkStatus();
  }
  const auto ticket = parts_.staging.Begin(page.payload_bytes());
  if (ticket.ok()) {
    receiving_.ticket = *ticket;
    if (payload_ == v1::RAW) {
      receiving_.digests.emplace(KeptRunBytes(*space_->codec, page.tokens()));
    }
  } else {
    RefuseReceiving(ticket.status().message());
  }
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
  if (r.ticket == 0) {
    GrantCredit(payload.bytes);
    return absl::OkStatus();
  }
  if (payload.bytes == 0 && !message.has_begin()) {
    RefuseReceiving(absl::StrCat("the chunk at offset ", message.offset(), " is empty"));
    return absl::OkStatus();
  }
  const uint64_t raw_bytes = PageBytes(space_->spec, r.begin.tokens());
  uint64_t offset = message.offset();
  absl::Status status;
  for (const grpc::Slice& slice : payload.slices) {
    if (slice.size() == 0) continue;
    const std::span<const uint8_t> piece(slice.begin(), slice.size());
    status = parts_.staging.Append(r.ticket, offset, piece);
    if (!status.ok()) break;
    if (r.digests.has_value() && offset < raw_bytes) {
      r.digests->Update(piece.first(std::min(piece.size(), raw_bytes - offset)));
    }
    offset += slice.size();
  }
  r.bytes += payload.bytes;
  if (status.ok()) status = TakeDigest(message);
  if (!status.ok()) {
    RefuseReceiving(status.message());
  } else if (r.bytes == r.begin.payload_bytes()) {
    {
      MutexLock lock(mu_);
      if (finished_) return absl::OkStatus();  // the server has ended it
      ++busy_;
    }
    std::optional<PageDigests> came;
    if (r.digests.has_value()) came = r.digests->Finish();
    parts_.put_workers.Submit(
        [this, number = r.number, page = std::move(r.begin), parent = std::move(r.parent_key),
         ticket = r.ticket, came = std::move(came)] { Store(number, page, parent, ticket, came); });
    r = {};  // one more chunk of this page ends the stream
  }
  return absl::OkStatus();
}

// Of a page that was sent before it was whole.
absl::Status PutStream::TakeDigest(const v1::PutRequest& message) {
  if (message.digest().empty()) return absl::OkStatus();
  Receiving& r = receiving_;
  if (message.digest().size() != sizeof(Digest128) || !r.begin.digest().empty() ||
      r.bytes != r.begin.payload_bytes()) {
    return absl::InvalidArgumentError(
        "digest: a page has one, of 16 bytes, in `begin` or with its last chunk");
  }
  r.begin.set_digest(message.digest());
  return absl::OkStatus();
}

// Answers the page that is being received; what is left of its chunks will be discarded.
void PutStream::RefuseReceiving(absl::string_view why) {
  if (receiving_.ticket != 0) parts_.staging.Abort(receiving_.ticket);
  receiving_.ticket = 0;
  Answer(receiving_.number, Refused(why), receiving_.bytes, false);
}

void PutStream::Store(uint64_t number, const v1::PutPage& page, std::string parent_key,
                      Staging::Ticket ticket, const std::optional<PageDigests>& came) {
  const auto payload = parts_.staging.Finish(ticket);
  v1::PutResult result = payload.ok() ? parts_.writer.Write(*space_, payload_, page, *payload,
                                                            std::move(parent_key), nullptr, came)
                                      : Refused(payload.status().message());
  Answer(number, std::move(result), page.payload_bytes(), true,
         PageBytes(space_->spec, page.tokens()));
}

void PutStream::Answer(uint64_t number, v1::PutResult result, uint64_t credit, bool from_worker,
                       uint64_t raw_bytes) {
  result.set_page(number);
  parts_.metrics.CountPut(result.status(), raw_bytes, result.stored_bytes());
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
    resume = std::exchange(paused_, false) && !reading_done_;
  }
  Act(this, next);
  if (resume) StartRead(&in_);
}

// What is open, a read or (while reading is paused) a write, fails now and ends the stream.
void PutStream::OnCancel() {
  MutexLock lock(mu_);
  broken_ = true;
}

}  // namespace

RawReactor* NewPutStream(StreamParts& parts, grpc::CallbackServerContext* context) {
  return BulkStream::Start(std::make_shared<PutStream>(parts, context));
}

}  // namespace kvstow
