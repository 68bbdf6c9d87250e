#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/wire/chunk.h"
#include "service/spaces/messages.h"
#include "service/transports/bulk_stream.h"

namespace kvstow {
namespace {

// So many pages may wait on a stream at no cost. A stream that has them, and credit, reads no more
// requests until some are answered. Without credit it reads on, as the next message may bring some.
// The request of each page beyond these then takes bytes of Admission.
constexpr size_t kFreePages = 1024;
constexpr uint64_t kBytesOfRequest = 512;

class GetStream final : public BulkStream {
 public:
  GetStream(StreamParts& parts, grpc::CallbackServerContext* context)
      : BulkStream(parts, *context, StreamKind::kGet) {}

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;

 private:
  // A page that was asked for, from then until its last byte is written.
  struct Asked {
    v1::GetPage request;
    uint64_t reserved = 0;          // payload bytes of ahead_ that are this page's
    bool near = false;              // nobody need wait for the remote tier
    std::optional<Time> far_since;  // PageReader::Brought
    Admission::Bytes held;  // for its request; then for the page, until its payload has them
    std::unique_ptr<FetchedPage> page;  // once it is ready
    bool begun = false;                 // its reply is on the wire
    uint64_t sent = 0;                  // payload bytes on the wire
    size_t part = 0;                    // of page->payload, and the offset in it, that come next
    size_t part_offset = 0;
  };
  using AskedPtr = std::shared_ptr<Asked>;

  absl::Status Handle(const grpc::ByteBuffer& message);
  absl::Status Open(const v1::GetOpen& open);
  absl::StatusOr<std::vector<AskedPtr>> TakeRequests(v1::GetRequest& message);
  void EndReading(absl::Status status);
  // These two run on worker threads.
  void Bring(const AskedPtr& asked);
  void Fetch(const AskedPtr& asked);

  // Returns whether the stream has enough to do without reading more requests. Writes follow then.
  bool Full() const KVSTOW_REQUIRES(mu_) { return asked_.size() >= kFreePages && credit_ > 0; }
  void ReserveWindow() KVSTOW_REQUIRES(mu_);
  void StartFetches() KVSTOW_REQUIRES(mu_);
  void ForgetAsked() KVSTOW_REQUIRES(mu_);
  bool NextChunk() KVSTOW_REQUIRES(mu_);
  std::vector<SharedBytes> TakePayload(Asked& asked) KVSTOW_REQUIRES(mu_);
  Next WhatNext() override KVSTOW_REQUIRES(mu_);
  bool Holding() const override KVSTOW_REQUIRES(mu_) {
    return next_fetch_ > 0 || writing_ || asked_.size() > kFreePages;
  }

  std::shared_ptr<const Space> space_;  // these five are set once, by the first message
  ByteBudget::Payer payer_;
  Asking by_;
  Checks checks_ = Checks::kStore;
  v1::Payload payload_ = v1::RAW;

  bool paused_ KVSTOW_GUARDED_BY(mu_) = false;         // it is Full, and no read is open
  std::deque<AskedPtr> asked_ KVSTOW_GUARDED_BY(mu_);  // in the order of replies
  // In asked_: those before the one have their part of the window, those before the other are being
  // fetched.
  size_t next_reserve_ KVSTOW_GUARDED_BY(mu_) = 0, next_fetch_ KVSTOW_GUARDED_BY(mu_) = 0;
  uint64_t ahead_ KVSTOW_GUARDED_BY(mu_) = 0;   // payload bytes fetched and not yet written
  uint64_t credit_ KVSTOW_GUARDED_BY(mu_) = 0;  // payload bytes that the client will take
  // The page that waits in line for its bytes, the last of those being fetched; null: none.
  const Asked* waiting_ KVSTOW_GUARDED_BY(mu_) = nullptr;
  std::shared_ptr<ByteBudget::Place> in_line_ KVSTOW_GUARDED_BY(mu_);
};

// Payload that holds bytes for as long as anybody has a part of it.
std::vector<SharedBytes> WithBytes(std::vector<SharedBytes> payload, Admission::Bytes bytes) {
  struct Owner {
    std::shared_ptr<const Admission::Bytes> held;  // goes after the part
    SharedBytes part;
  };
  const auto held = std::make_shared<const Admission::Bytes>(std::move(bytes));
  for (SharedBytes& part : payload) {
    const std::span<const uint8_t> view = part.span();
    part = SharedBytes(std::make_shared<const Owner>(Owner{held, std::move(part)}), view);
  }
  return payload;
}

void GetStream::OnReadDone(bool ok) {
  if (!ok) {
    EndReading(absl::OkStatus());
    return;
  }
  if (const absl::Status status = Handle(in_); !status.ok()) {
    EndReading(status);
    return;
  }
  {
    MutexLock lock(mu_);
    paused_ = Full() && !broken_;
    if (paused_) return;  // OnWriteDone goes on
  }
  StartRead(&in_);
}

// After an error, forgets the pages that are not on the wire yet.
void GetStream::EndReading(absl::Status status) {
  Next next;
  {
    MutexLock lock(mu_);
    if (!reading_done_) {  // else the server has ended it
      reading_done_ = true;
      if (!status.ok()) broken_ = true;
      final_ = std::move(status);
    }
    next = Decide();
  }
  Act(this, next);
}

absl::Status GetStream::Handle(const grpc::ByteBuffer& buffer) {
  v1::GetRequest message;
  if (const absl::Status s = ReadMessage(buffer, message); !s.ok()) return s;
  if (message.has_open() == (space_ != nullptr)) {
    return absl::InvalidArgumentError("the first message of a Get stream has `open`, no other has");
  }
  if (message.has_open()) {
    if (const absl::Status s = Open(message.open()); !s.ok()) return s;
  }
  auto requests = TakeRequests(message);
  if (!requests.ok()) return requests.status();
  Next next;
  {
    MutexLock lock(mu_);
    for (AskedPtr& asked : *requests) asked_.push_back(std::move(asked));
    // Sums that would wrap around are as good as unlimited.
    credit_ = std::max(credit_, credit_ + message.credit_bytes());
    next = Decide();
  }
  Act(this, next);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<GetStream::AskedPtr>> GetStream::TakeRequests(v1::GetRequest& message) {
  size_t pending;
  {
    MutexLock lock(mu_);
    pending = asked_.size();
  }
  if (pending + message.pages_size() > parts_.limits.pending_pages) {
    return absl::InvalidArgumentError(
        absl::StrCat("more than ", parts_.limits.pending_pages,
                     " pages were asked for and are not answered yet: ask for fewer at a time"));
  }
  std::vector<AskedPtr> out;
  out.reserve(message.pages_size());
  for (v1::GetPage& page : *message.mutable_pages()) {
    if (const absl::Status s = CheckRequest(page); !s.ok()) return s;
    if (!page.GetReflection()->GetUnknownFields(page).empty()) page.DiscardUnknownFields();
    auto asked = std::make_shared<Asked>();
    if (++pending > kFreePages) {
      auto held = parts_.admission.TakeRequest(kBytesOfRequest);
      if (!held.ok()) return held.status();
      asked->held = *std::move(held);
    }
    asked->request = std::move(page);
    out.push_back(std::move(asked));
  }
  return out;
}

absl::Status GetStream::Open(const v1::GetOpen& open) {
  if (!v1::Payload_IsValid(open.payload())) {
    return absl::InvalidArgumentError(
        absl::StrCat("payload: ", open.payload(), " is no value that this server knows"));
  }
  auto space = parts_.spaces.Find(*caller_, open.space(), open.fingerprint(), SpaceUse::kRead);
  if (!space.ok()) return space.status();
  payer_ = PayerOf(parts_.puts.tenants, caller_->tenant);
  space_ = *std::move(space);
  by_ = {.tenant = caller_->tenant, .lease = {open.lease(), HolderOf(*caller_)}};
  checks_ = open.checked() ? Checks::kReader : Checks::kStore;
  payload_ = open.payload() == v1::PAYLOAD_UNSPECIFIED ? v1::RAW : open.payload();
  return absl::OkStatus();
}

// Pages are fetched ahead as far as the client's credit and the window go, and one at least once
// there is credit. Far ones come here first: they hold nothing while they wait for the network.
void GetStream::ReserveWindow() {
  while (next_reserve_ < asked_.size() && credit_ > 0) {
    const AskedPtr& asked = asked_[next_reserve_];
    const uint64_t bound = PayloadBound(*space_, asked->request);
    if (ahead_ > 0 && ahead_ + bound > std::min(credit_, parts_.limits.window_bytes)) return;
    asked->reserved = bound;
    ahead_ += bound;
    ++next_reserve_;
    asked->near = !parts_.reader.IsFar(*space_, asked->request.key());
    if (asked->near) continue;
    ++busy_;
    parts_.far_workers.Submit([this, asked] { Bring(asked); });
  }
}

// Each page waits in line for its bytes, and those behind it wait for it: none of them may hold
// what it needs.
void GetStream::StartFetches() {
  while (next_fetch_ < next_reserve_ && asked_[next_fetch_]->near && waiting_ == nullptr) {
    const AskedPtr asked = asked_[next_fetch_];
    if (asked->page == nullptr && credit_ == 0) return;
    ++next_fetch_;
    if (asked->page != nullptr) continue;  // it did not come
    ++busy_;
    const auto fetch = [this, asked](Admission::Bytes held) {
      asked->held = std::move(held);
      parts_.get_workers.Submit([=, this] { Fetch(asked); });
    };
    in_line_ = parts_.admission.gets().Wait(FetchBytes(*space_, asked->request), fetch, payer_);
    if (in_line_ != nullptr) waiting_ = asked.get();
  }
}

// Pages that are being fetched now come back to nobody.
void GetStream::ForgetAsked() {
  if (in_line_ != nullptr && parts_.admission.gets().Leave(in_line_)) --busy_;
  in_line_ = nullptr;
  waiting_ = nullptr;
  asked_.clear();
  next_reserve_ = next_fetch_ = 0;
}

void GetStream::Bring(const AskedPtr& asked) {
  bool wanted;
  {
    MutexLock lock(mu_);
    wanted = !broken_;
  }
  PageReader::Brought brought;
  if (wanted) brought = parts_.reader.Bring(*space_, by_, asked->request);
  Next next;
  {
    MutexLock lock(mu_);
    if (brought.answer != nullptr) ahead_ -= asked->reserved;
    asked->page = std::move(brought.answer);
    asked->far_since = brought.since;
    asked->near = true;
    --busy_;
    next = Decide();
  }
  Act(this, next);
}

void GetStream::Fetch(const AskedPtr& asked) {
  bool wanted;
  {
    MutexLock lock(mu_);
    wanted = !broken_;
    if (waiting_ == asked.get()) {
      waiting_ = nullptr;
      in_line_ = nullptr;
    }
  }
  auto page = std::make_unique<FetchedPage>();
  if (wanted) {
    *page = parts_.reader.Fetch(*space_, by_, payload_, asked->request, checks_, asked->far_since);
  }
  const uint64_t bytes = page->reply.payload_bytes();
  asked->held.Resize(bytes);
  page->payload = WithBytes(std::move(page->payload), std::move(asked->held));
  Next next;
  {
    MutexLock lock(mu_);
    ahead_ += bytes - asked->reserved;
    asked->page = std::move(page);
    --busy_;
    next = Decide();
  }
  Act(this, next);
}

// The next bytes of a page, as far as credit and the size of a chunk go.
std::vector<SharedBytes> GetStream::TakePayload(Asked& asked) {
  uint64_t room = std::min(parts_.limits.get_chunk_bytes, credit_);
  std::vector<SharedBytes> out;
  while (room > 0 && asked.part < asked.page->payload.size()) {
    const SharedBytes& part = asked.page->payload[asked.part];
    const size_t bytes = std::min<uint64_t>(room, part.size() - asked.part_offset);
    if (bytes > 0) out.push_back(part.Slice(asked.part_offset, bytes));
    asked.sent += bytes;
    asked.part_offset += bytes;
    credit_ -= bytes;
    ahead_ -= bytes;
    room -= bytes;
    if (asked.part_offset == part.size()) {
      ++asked.part;
      asked.part_offset = 0;
    }
  }
  return out;
}

// Puts the next message into out_; false when there is nothing that may be sent.
bool GetStream::NextChunk() {
  if (asked_.empty() || asked_.front()->page == nullptr) return false;
  Asked& asked = *asked_.front();
  const uint64_t total = asked.page->reply.payload_bytes();
  if (asked.begun && credit_ == 0) return false;
  v1::GetResponse message;
  message.set_page(asked.request.page());
  message.set_offset(asked.sent);
  if (!asked.begun) *message.mutable_begin() = asked.page->reply;
  asked.begun = true;
  out_ = WriteChunk(message, TakePayload(asked));
  if (asked.sent == total) {
    asked_.pop_front();
    --next_reserve_;
    --next_fetch_;
  }
  return true;
}

GetStream::Next GetStream::WhatNext() {
  if (finished_) return Next::kNothing;
  if (broken_) {
    ForgetAsked();
  } else if (space_ != nullptr) {
    ReserveWindow();
    StartFetches();
  }
  if (writing_) return Next::kNothing;
  if (NextChunk()) {
    writing_ = true;
    return Next::kWrite;
  }
  if (!reading_done_ || busy_ > 0) return Next::kNothing;
  if (!asked_.empty()) {
    final_ = absl::InvalidArgumentError(
        "the stream was closed before there was credit_bytes for all that was asked for");
  }
  finished_ = true;
  return Next::kFinish;
}

void GetStream::OnWriteDone(bool ok) {
  Next next;
  bool resume;
  {
    MutexLock lock(mu_);
    writing_ = false;
    out_.Clear();  // it has a part of a page
    if (!ok) broken_ = true;
    next = Decide();
    resume = paused_ && (broken_ || !Full()) && !reading_done_;
    if (resume) paused_ = false;
  }
  Act(this, next);
  if (resume) StartRead(&in_);
}

// The open read fails now, and ends the stream. Where none is open, reading ends here; then it is a
// write or a fetch that comes back, and Decide() finishes.
void GetStream::OnCancel() {
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

RawReactor* NewGetStream(StreamParts& parts, grpc::CallbackServerContext* context,
                         absl::StatusOr<CallerPtr> caller) {
  return BulkStream::Start(std::make_shared<GetStream>(parts, context), std::move(caller));
}

}  // namespace kvstow
