#include "tests/client/fake_streams.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"

namespace kvstow::fake {
namespace {

constexpr uint64_t kPutWindow = 256 << 10;
constexpr uint64_t kGetChunk = 100'000;

// A stream that queues its answers and finishes when the client has and the queue is empty.
template <typename Request, typename Response>
class Stream : public grpc::ServerBidiReactor<Request, Response> {
 public:
  explicit Stream(State& state) : state_(state) {
    ++state.faults.streams;
    this->StartRead(&request_);
  }

  void OnReadDone(bool ok) final {
    std::lock_guard lock(mu_);
    if (!ok) {
      half_closed_ = true;
      return Pump();
    }
    if (finished_) return;
    if (!state_.faults.stall) {
      if (grpc::Status status = Take(request_); !status.ok()) return End(status);
    }
    request_.Clear();
    this->StartRead(&request_);
    Pump();
  }
  void OnWriteDone(bool) final {
    std::lock_guard lock(mu_);
    writing_ = false;
    Pump();
  }
  void OnCancel() final {
    std::lock_guard lock(mu_);
    End(grpc::Status::CANCELLED);
  }
  void OnDone() final { delete this; }

 protected:
  virtual grpc::Status Take(const Request& request) = 0;
  // The next answer, if one can be sent.
  virtual std::optional<Response> Next() = 0;
  virtual bool Idle() = 0;
  void End(grpc::Status status) {
    if (!std::exchange(finished_, true)) this->Finish(status);
  }
  void Pump() {
    if (finished_ || writing_) return;
    if (auto next = Next()) {
      response_ = *std::move(next);
      writing_ = true;
      this->StartWrite(&response_);
    } else if (half_closed_ && Idle() && !state_.faults.stall) {
      End(grpc::Status::OK);
    }
  }

  State& state_;

 private:
  std::mutex mu_;
  Request request_;
  Response response_;
  bool writing_ = false, half_closed_ = false, finished_ = false;
};

class PutReactor final : public Stream<v1::PutRequest, v1::PutResponse> {
 public:
  using Stream::Stream;

 private:
  grpc::Status Take(const v1::PutRequest& request) override {
    if (request.has_open()) {
      space_ = request.open().space();
      if (!state_.Has(space_)) return NoSpace(space_);
      Grant(kPutWindow);
      return grpc::Status::OK;
    }
    if (request.has_begin()) {
      if (page_ != 0 || request.page() == 0) return Bad("a page began inside another");
      page_ = request.page();
      begin_ = request.begin();
    }
    if (request.page() != page_ || request.offset() != bytes_.size()) return Bad("chunk not due");
    if (request.data().size() > credit_) return Bad("more than was granted");
    credit_ -= request.data().size();
    bytes_ += request.data();
    Grant(request.data().size());
    if (!request.digest().empty()) begin_.set_digest(request.digest());
    return bytes_.size() < begin_.payload_bytes() ? grpc::Status::OK : EndPage();
  }

  grpc::Status EndPage() {
    if (AsString(Xxh3_128(AsBytes(bytes_)).bytes) != absl::string_view(begin_.digest())) {
      return Bad("digest does not match");
    }
    v1::PutResponse response;
    v1::PutResult& result = *response.add_results();
    result.set_page(page_);
    result.set_stored_bytes(bytes_.size());
    result.set_recipe("raw");
    result.set_status(state_.Store(space_, begin_, std::move(bytes_)));
    if (result.status() != v1::STORED) result.set_message("see status");
    queue_.push_back(response);
    bytes_.clear();
    page_ = 0;
    if (state_.faults.break_after_pages > 0 && --state_.faults.break_after_pages == 0) {
      return {grpc::StatusCode::UNAVAILABLE, "broken on demand"};
    }
    return grpc::Status::OK;
  }

  void Grant(uint64_t bytes) {
    credit_ += bytes;
    queue_.emplace_back().set_credit_bytes(bytes);
  }
  static grpc::Status Bad(const std::string& what) {
    return {grpc::StatusCode::INVALID_ARGUMENT, what};
  }
  std::optional<v1::PutResponse> Next() override {
    if (queue_.empty()) return std::nullopt;
    v1::PutResponse out = std::move(queue_.front());
    queue_.pop_front();
    return out;
  }
  bool Idle() override { return queue_.empty(); }

  std::string space_, bytes_;
  uint64_t page_ = 0, credit_ = 0;
  v1::PutPage begin_;
  std::deque<v1::PutResponse> queue_;
};

class GetReactor final : public Stream<v1::GetRequest, v1::GetResponse> {
 public:
  using Stream::Stream;

 private:
  grpc::Status Take(const v1::GetRequest& request) override {
    if (request.has_open()) {
      space_ = request.open().space();
      checked_ = request.open().checked();
      if (!state_.Has(space_)) return NoSpace(space_);
    }
    credit_ += request.credit_bytes();
    for (const v1::GetPage& page : request.pages()) queue_.push_back(page);
    return grpc::Status::OK;
  }

  std::optional<v1::GetResponse> Next() override {
    if (queue_.empty() || From(state_.faults.hold_from_layer)) return std::nullopt;
    if (!begun_ && state_.faults.break_after_gets > 0 && --state_.faults.break_after_gets == 0) {
      End({grpc::StatusCode::UNAVAILABLE, "broken on demand"});
      return std::nullopt;
    }
    v1::GetResponse response;
    response.set_page(queue_.front().page());
    if (!begun_) Begin(queue_.front(), response);
    const uint64_t n = std::min<uint64_t>({credit_, kGetChunk, bytes_.size() - sent_});
    if (n == 0 && !response.has_begin()) return std::nullopt;
    response.set_offset(sent_ + (state_.faults.shift_chunks ? 1 : 0));
    response.set_data(bytes_.substr(sent_, n));
    const bool flip = state_.faults.flip_a_bit || (checked_ && state_.faults.bad_memory);
    if (sent_ == 0 && n > 0 && flip) (*response.mutable_data())[n / 2] ^= 1;
    sent_ += n;
    credit_ -= std::min(n, credit_);
    if (sent_ == bytes_.size()) {
      queue_.pop_front();
      begun_ = false;
    }
    return response;
  }

  // Whether the next page is asked for its layers from a fault's on.
  bool From(int layer) const {
    return layer >= 0 && queue_.front().first_layer() >= static_cast<uint32_t>(layer);
  }

  void Begin(const v1::GetPage& asked, v1::GetResponse& response) {
    begun_ = true;
    sent_ = 0;
    bytes_.clear();
    v1::PageReply& reply = *response.mutable_begin();
    std::lock_guard lock(state_.mu);
    const Space& space = state_.spaces[space_];
    const auto it = space.pages.find(asked.key());
    reply.set_key(asked.key());
    reply.set_status(it == space.pages.end() ? v1::MISS : v1::HIT);
    if (it == space.pages.end()) return;
    const Page& page = it->second;
    const size_t layer = LayerBytes(space.spec, page.tokens);
    const uint32_t layers =
        asked.layer_count() == 0 ? space.spec.layers - asked.first_layer() : asked.layer_count();
    bytes_ = page.bytes.substr(asked.first_layer() * layer, layers * layer);
    reply.set_tokens(page.tokens);
    reply.set_first_position(page.first_position);
    reply.set_payload_bytes(bytes_.size());
    reply.set_tier("host");
    reply.set_recipe("raw");
    reply.set_exact(true);
    reply.set_levels(2);
    reply.set_levels_stored(2);
    if (asked.max_levels() == 1 || From(state_.faults.worse_from_layer)) {
      reply.set_exact(false);
      reply.set_levels(1);
      reply.set_estimated_error(0.25);
      reply.set_recipe("worse");
    }
    if (state_.faults.lie_about_kept) {
      reply.mutable_kept()->set_bytes(10);
      reply.mutable_kept()->set_layers(UINT32_MAX);
      reply.mutable_kept()->set_kv_heads(UINT32_MAX);
    }
    reply.set_stored_bytes(page.bytes.size());
    Digest128 digest = Xxh3_128(AsBytes(page.bytes));
    if (From(state_.faults.other_from_layer)) digest.bytes[0] ^= 1;
    reply.set_raw_digest(digest.bytes.data(), digest.bytes.size());
    reply.set_payload_digest(std::string(AsString(Xxh3_128(AsBytes(bytes_)).bytes)));
  }
  bool Idle() override { return queue_.empty(); }

  std::string space_, bytes_;
  uint64_t credit_ = 0, sent_ = 0;
  bool begun_ = false;
  bool checked_ = false;  // as the client says that it will
  std::deque<v1::GetPage> queue_;
};

}  // namespace

grpc::Status NoSpace(const std::string& name) {
  return {grpc::StatusCode::NOT_FOUND, absl::StrCat("no space '", name, "': open it first")};
}

grpc::ServerBidiReactor<v1::PutRequest, v1::PutResponse>* NewPutStream(State& state) {
  return new PutReactor(state);
}
grpc::ServerBidiReactor<v1::GetRequest, v1::GetResponse>* NewGetStream(State& state) {
  return new GetReactor(state);
}

}  // namespace kvstow::fake
