#include "client/put_call.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "client/convert.h"
#include "client/put_payload.h"
#include "client/raw_stream.h"
#include "client/space_opening.h"
#include "proto/wire/chunk.h"

namespace kvstow {
namespace {

constexpr char kMethod[] = "/kvstow.v1.KvCache/Put";
constexpr Duration kDrainTime = std::chrono::milliseconds(50);
constexpr size_t kLayerPutStreams = 8;  // Client::PutLayers says so too

// Bytes [offset, offset + bytes) of `parts`.
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

// The caller's pages and their results. The slices that gRPC holds share it, so it goes, and the
// callback runs, when nobody reads the pages any more.
struct PutBatch {
  ClientCore& core;
  std::vector<PagePut> pages;
  Answers<PutResult> answers;
  Client::PutDone done;

  PutBatch(ClientCore& c, std::vector<PagePut> p, Client::PutDone d)
      : core(c), pages(std::move(p)), answers(pages.size()), done(std::move(d)) {
    core.calls.AddBatch();
  }
  ~PutBatch() {
    core.executor.Run([&core = core, results = answers.Take(), done = std::move(done)]() mutable {
      done(std::move(results));
      core.calls.RemoveBatch();
    });
  }
};

struct PutCall {
  std::shared_ptr<PutBatch> batch;
  std::string space;
  std::shared_ptr<SpacePayload> payload;
  std::shared_ptr<PutProgress> progress;  // null: all pages are whole
  const PageCoder coder;                  // null: the space's codec
  Attempts attempts;
  bool opened_again = false;  // the space
};

void StartStream(std::shared_ptr<PutCall> call);

void Fail(PutCall& call, const absl::Status& status) {
  const absl::Status why = Explain(status, call.batch->core.options.address);
  for (const size_t i : call.batch->answers.Missing()) {
    call.batch->answers.Set(
        i, {.outcome = OutcomeOfFailedPut(why), .message = std::string(why.message())});
  }
}

// The space is opened, and the stream starts.
void OpenAndStart(const std::shared_ptr<PutCall>& call) {
  ClientCore& core = call->batch->core;
  OpenAgain(core, call->space, call->attempts, [&core, call](const absl::Status& status) {
    if (!status.ok()) return Fail(*call, status);
    call->payload = core.payloads.Find(call->space);
    StartStream(call);
  });
}

// When the deadline passed and bytes of the batch still lie in the connection a little later, its
// peer has stopped reading, and only the end of the connection gives the bytes back: the other
// streams on it go on over a new one.
void FreeBytesSoon(ClientCore& core, std::weak_ptr<PutBatch> batch,
                   std::shared_ptr<grpc::Channel> channel) {
  core.executor.RunAfter(kDrainTime, [&core, batch = std::move(batch), channel] {
    if (batch.expired()) return;
    core.channels.ReplaceBulk(channel.get());
    core.calls.CancelStreams(channel.get(),
                             absl::UnavailableError("the connection stalled and was replaced"));
  });
}

// On the executor, when a stream is over. `call` goes here unless there is another attempt.
void AfterStream(std::shared_ptr<PutCall> call, absl::Status status, size_t asked,
                 std::shared_ptr<grpc::Channel> channel) {
  ClientCore& core = call->batch->core;
  const size_t left = call->batch->answers.Missing().size();
  if (absl::IsDeadlineExceeded(status)) FreeBytesSoon(core, call->batch, std::move(channel));
  if (left == 0) return;
  if (status.ok()) status = absl::InternalError("the server ended the stream without an answer");
  if (IsOtherSpace(status) && !std::exchange(call->opened_again, true)) return OpenAndStart(call);
  const auto wait = core.calls.closed() ? std::nullopt : call->attempts.Next(status, left < asked);
  if (!wait) return Fail(*call, status);
  core.executor.RunAfter(*wait, [call = std::move(call)] { StartStream(call); });
}

// One stream: sends what it has credit for, page after page, and encodes each before its first
// byte.
class PutStream final : public StreamHandler {
 public:
  PutStream(std::shared_ptr<PutCall> call, std::shared_ptr<grpc::Channel> channel)
      : call_(std::move(call)),
        channel_(std::move(channel)),
        batch_(call_->batch),
        todo_(batch_->answers.Missing()),
        encoded_(ChooseEncoded()) {}

  Outgoing Next() override {
    if (batch_ == nullptr) return {.last = true};
    const PutProgress* const progress = call_->progress.get();
    if (progress != nullptr && progress->given_up()) {
      GiveUp();
      return {.last = true};
    }
    v1::PutRequest message;
    if (!opened_) {
      opened_ = true;
      message.mutable_open()->set_space(call_->space);
      message.mutable_open()->set_fingerprint(call_->payload->fingerprint);
      message.mutable_open()->set_payload(encoded_ ? v1::ENCODED : v1::RAW);
      return {.message = WriteChunk(message, {})};
    }
    // Without credit no page is begun: a server that refuses the stream costs no digest.
    while (credit_ > 0 && next_ < todo_.size() && parts_.empty() &&
           !Begin(batch_->pages[todo_[next_]])) {
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
        std::min<uint64_t>({credit_, batch_->core.options.chunk_bytes, ready - sent_});
    if (progress != nullptr) {
      digest_.Update(batch_->pages[todo_[next_]].raw.subspan(sent_, bytes));
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
    if (batch_ == nullptr) return absl::InternalError("the server answered more than was asked");
    v1::PutResponse response;
    if (absl::Status s = ReadMessage(message, response); !s.ok()) return s;
    credit_ += response.credit_bytes();
    for (const v1::PutResult& result : response.results()) {
      const uint64_t page = result.page();
      if (page == 0 || page > todo_.size() || batch_->answers.Has(todo_[page - 1])) {
        return absl::InternalError(
            absl::StrCat("the server answered page ", page, ", which was not asked"));
      }
      if (result.status() == v1::STORED) raw_bytes_ += batch_->pages[todo_[page - 1]].raw.size();
      batch_->answers.Set(todo_[page - 1], PutResultOf(result));
      ++answered_;
    }
    // The end of the stream brings nothing more.
    if (answered_ == todo_.size()) LetGo().reset();
    return absl::OkStatus();
  }

  void OnEnd(const absl::Status& status) override {
    if (batch_ == nullptr) return;
    ClientCore& core = batch_->core;
    core.executor.Run(
        [call = LetGo(), channel = std::move(channel_), status, asked = todo_.size()]() mutable {
          AfterStream(std::move(call), status, asked, std::move(channel));
        });
  }

 private:
  // Of the call, whose pages nothing here reads any more.
  std::shared_ptr<PutCall> LetGo() {
    if (call_->progress == nullptr) {
      call_->payload->put.Took(encoded_, raw_bytes_, Clock::Real().Now() - start_);
    }
    parts_.clear();
    batch_.reset();
    return std::move(call_);
  }
  void GiveUp() {
    for (const size_t i : batch_->answers.Missing()) {
      batch_->answers.Set(i, RefusedPut("the put was given up before its layers were filled"));
    }
    LetGo().reset();
  }
  bool ChooseEncoded() const {
    if (call_->progress != nullptr) return false;
    std::vector<const PagePut*> pages;
    for (const size_t i : todo_) pages.push_back(&batch_->pages[i]);
    return GoEncoded(*call_->payload, pages);
  }

  // Makes the payload of a page and says what it is. False when it cannot be coded: it is refused.
  bool Begin(const PagePut& page) {
    const bool filling = call_->progress != nullptr;
    std::optional<Digest128> digest;
    if (!filling) digest = Xxh3_128(page.raw);
    digest_ = Xxh3Stream();
    absl::StatusOr<PutPayload> payload =
        MakePutPayload(page, *call_->payload, encoded_, digest, batch_, call_->coder);
    if (!payload.ok()) {
      batch_->answers.Set(todo_[next_], RefusedPut(payload.status().message()));
      ++answered_;
      return false;
    }
    begin_.Swap(&payload->begin);
    parts_ = std::move(payload->parts);
    return true;
  }

  std::shared_ptr<PutCall> call_;
  std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<PutBatch> batch_;  // null, with call_, once all is answered
  const std::vector<size_t> todo_;   // pages of this stream, page number - 1 -> place in the batch
  const bool encoded_;
  const Time start_ = Clock::Real().Now();
  uint64_t raw_bytes_ = 0;  // of pages that were stored
  bool opened_ = false;
  size_t answered_ = 0;
  size_t next_ = 0;                 // place in todo_ of the page that is being sent
  std::vector<SharedBytes> parts_;  // its payload; empty before Begin
  v1::PutPage begin_;               // what its first message says
  uint64_t sent_ = 0;               // of its bytes
  Xxh3Stream digest_;               // of them, where it is not in begin_
  uint64_t credit_ = 0;             // that the server has granted and we have not used
};

void StartStream(std::shared_ptr<PutCall> call) {
  ClientCore& core = call->batch->core;
  const std::shared_ptr<grpc::Channel> channel = core.channels.bulk();
  if (channel == nullptr) return Fail(*call, absl::CancelledError("the client was closed"));
  const Time deadline = call->attempts.deadline();
  auto bell = call->progress == nullptr ? nullptr : call->progress->NewBell();
  RawStream::Start(core, channel, kMethod, deadline,
                   std::make_shared<PutStream>(std::move(call), channel), std::move(bell));
}

}  // namespace

void StartPut(ClientCore& core, std::string space, std::vector<PagePut> pages, Time deadline,
              Client::PutDone done, std::shared_ptr<PutProgress> progress, PageCoder coder) {
  auto batch = std::make_shared<PutBatch>(core, std::move(pages), std::move(done));
  for (size_t i = 0; i < batch->pages.size(); ++i) {
    const PagePut& page = batch->pages[i];
    absl::string_view why = CannotPut(page);
    if (why.empty() && progress != nullptr && !page.columns.empty()) {
      why = "columns: report attention once the page is stored";
    }
    if (!why.empty()) batch->answers.Set(i, RefusedPut(why));
  }
  std::shared_ptr<SpacePayload> payload = core.payloads.Find(space);
  auto call = std::make_shared<PutCall>(
      PutCall{std::move(batch), std::move(space), std::move(payload), std::move(progress),
              std::move(coder), Attempts(core.options.attempts, deadline)});
  if (!core.options_status.ok()) return Fail(*call, core.options_status);
  if (call->batch->answers.Missing().empty()) return;
  if (call->payload->fingerprint.empty()) return OpenAndStart(call);
  StartStream(std::move(call));
}

namespace {

class FillingPut final : public LayerPut {
 public:
  explicit FillingPut(std::shared_ptr<PutProgress> progress) : progress_(std::move(progress)) {}
  ~FillingPut() override { progress_->GiveUp(); }
  void Filled(uint32_t layers) override { progress_->Fill(layers); }

 private:
  const std::shared_ptr<PutProgress> progress_;
};

// The results of all streams of a layer put; of the executor.
struct AllStreams {
  std::vector<PutResult> results;
  size_t open;
  Client::PutDone done;
};

}  // namespace

// A stream takes one page after the other, so each of some pages gets one of its own.
std::unique_ptr<LayerPut> StartLayerPut(ClientCore& core, const SpaceInfo& space,
                                        std::vector<PagePut> pages, Client::PutDone done) {
  const size_t n = pages.size(), streams = std::clamp<size_t>(n, 1, kLayerPutStreams);
  auto progress = std::make_shared<PutProgress>(std::max(space.spec.layers, 1u));
  auto put = std::make_unique<FillingPut>(progress);
  if (IsStale(core, space)) {
    core.calls.AddBatch();
    core.executor.Run([&core, n, done = std::move(done)] {
      done(std::vector<PutResult>(
          n, {.outcome = PageOutcome::kNotCompatible, .message = kStaleSpace}));
      core.calls.RemoveBatch();
    });
    return put;
  }
  const auto all =
      std::make_shared<AllStreams>(AllStreams{std::vector<PutResult>(n), streams, std::move(done)});
  const Time deadline = core.Deadline();
  for (size_t s = 0; s < streams; ++s) {
    const size_t first = n * s / streams, end = n * (s + 1) / streams;
    std::vector<PagePut> some(std::make_move_iterator(pages.begin() + first),
                              std::make_move_iterator(pages.begin() + end));
    StartPut(
        core, space.name, std::move(some), deadline,
        [all, first](std::vector<PutResult> results) {
          std::move(results.begin(), results.end(), all->results.begin() + first);
          if (--all->open == 0) all->done(std::move(all->results));
        },
        progress);
  }
  return put;
}

}  // namespace kvstow
