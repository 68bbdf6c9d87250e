#include "client/client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/batch/batches.h"
#include "client/connection/client_core.h"
#include "client/connection/direct_lookup.h"
#include "client/connection/fork.h"
#include "client/connection/space_opening.h"
#include "client/connection/unary_call.h"
#include "client/payload/messages.h"
#include "client/transport/transports.h"
#include "proto/wire/chunk.h"

namespace kvstow {
namespace {

// Notes what the node that answered alone knows.
template <typename Response>
void NoteAnswer(ClientCore&, const Node&, const Response&) {}
void NoteAnswer(ClientCore& core, const Node& node, const v1::LookupResponse& response) {
  core.nodes.NoteLease(node, response.lease());
}

// A typed unary call of kvstow.v1.KvCache.
template <typename Response, typename Request>
absl::StatusOr<Response> CallCache(ClientCore& core, absl::string_view method,
                                   const Request& request, Time deadline) {
  const grpc::ByteBuffer message = WriteMessage(request);
  if (message.Length() > kMaxMessageBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        method, ": the message has ", message.Length(), " bytes, and the server takes ",
        kMaxMessageBytes, ": name fewer keys in a call"));
  }
  KVSTOW_ASSIGN_OR_RETURN(
      const Answer answer,
      CallUnary(core, absl::StrCat("/kvstow.v1.KvCache/", method), message, deadline));
  Response response;
  KVSTOW_RETURN_IF_ERROR(ReadMessage(answer.message, response));
  NoteAnswer(core, *answer.node, response);
  return response;
}

// Does the same for a call that names a space. Opens the space where the client or the server does
// not know it.
template <typename Response, typename Request>
absl::StatusOr<Response> CallInSpace(ClientCore& core, absl::string_view method, Request& request,
                                     Time deadline) {
  if (core.payloads.Find(request.space())->fingerprint.empty()) {
    KVSTOW_RETURN_IF_ERROR(OpenAgain(core, request.space(), deadline));
  }
  request.set_fingerprint(core.payloads.Find(request.space())->fingerprint);
  absl::StatusOr<Response> response = CallCache<Response>(core, method, request, deadline);
  if (!IsOtherSpace(response.status())) return response;
  KVSTOW_RETURN_IF_ERROR(OpenAgain(core, request.space(), deadline));
  return CallCache<Response>(core, method, request, deadline);
}

template <typename Request>
Request KeyedRequest(absl::string_view space, std::span<const std::string> keys) {
  Request request;
  request.set_space(std::string(space));
  request.mutable_keys()->Reserve(static_cast<int>(keys.size()));
  for (const std::string& key : keys) request.add_keys(key);
  return request;
}

absl::StatusOr<std::vector<PageOutcome>> OutcomesOf(
    const google::protobuf::RepeatedField<int>& status, size_t asked) {
  if (static_cast<size_t>(status.size()) != asked) {
    return absl::InternalError(absl::StrCat("the server answered for ", status.size(), " of ",
                                            asked, " keys: is it another version?"));
  }
  std::vector<PageOutcome> out;
  for (const int s : status) out.push_back(OutcomeOf(static_cast<v1::PageStatus>(s)));
  return out;
}

constexpr uint64_t kReportOverhead = 256;  // at most, of a report beside its scores

void AddReport(const PageReport& report, v1::PageAttention& out) {
  out.set_key(report.key);
  out.set_column(report.column.name);
  out.set_queries(report.column.queries);
  out.set_context(report.column.context);
  out.set_scores(report.column.scores.data(), report.column.scores.size());
}

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string out;
  if (!buffer.Dump(&slices).ok()) return out;
  for (const grpc::Slice& s : slices)
    out.append(reinterpret_cast<const char*>(s.begin()), s.size());
  return out;
}

// Returns what a forked child gets for each of `pages`.
template <typename Result>
std::vector<Result> ForkedResults(size_t pages) {
  Result result;  // its outcome is kUnavailable
  result.message = std::string(ForkedStatus().message());
  return std::vector<Result>(pages, result);
}

// A LayerPut that a forked child leaves alone.
class ParentsLayerPut final : public LayerPut {
 public:
  explicit ParentsLayerPut(std::unique_ptr<LayerPut> put) : put_(std::move(put)) {}
  ~ParentsLayerPut() override {
    if (Forked()) static_cast<void>(put_.release());
  }
  void Filled(uint32_t layers) override {
    if (!Forked()) put_->Filled(layers);
  }

 private:
  std::unique_ptr<LayerPut> put_;
};

grpc::ByteBuffer BufferOf(absl::string_view bytes) {
  const grpc::Slice slice(bytes.data(), bytes.size());
  return grpc::ByteBuffer(&slice, 1);
}

// Cuts a blob into messages. Fields of `first` other than the data go with the first piece.
template <typename Request>
std::vector<grpc::ByteBuffer> PiecesOf(std::span<const uint8_t> blob, Request first) {
  std::vector<grpc::ByteBuffer> pieces;
  do {
    const auto piece = blob.first(std::min<size_t>(blob.size(), kMaxChunkBytes));
    first.set_data(piece.data(), piece.size());
    pieces.push_back(WriteMessage(first));
    first.Clear();
    blob = blob.subspan(piece.size());
  } while (!blob.empty());
  return pieces;
}

}  // namespace

class Client::Impl {
 public:
  explicit Impl(ClientOptions options) : core(std::move(options)) {}
  ~Impl() { core.Close(); }

  template <typename Batch>
  void Start(std::shared_ptr<Batch> batch) {
    StartBatch(core, *transport, std::move(batch));
  }

  ClientCore core;
  const std::unique_ptr<Transport> transport = MakeTransports(core);
};

std::unique_ptr<Client> Client::Connect(ClientOptions options) {
  if (Forked()) return std::unique_ptr<Client>(new Client(nullptr));  // gRPC is the parent's
  return std::unique_ptr<Client>(new Client(std::make_unique<Impl>(std::move(options))));
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

// In a forked child, connections and threads are the parent's: the child touches none of them.
Client::~Client() {
  if (Forked()) static_cast<void>(impl_.release());
}

absl::StatusOr<SpaceInfo> Client::OpenSpace(const SpaceOptions& options) {
  if (Forked()) return ForkedStatus();
  return kvstow::OpenSpace(impl_->core, options,
                           options.payload.value_or(impl_->core.options.payload));
}

absl::StatusOr<SpaceInfo> Client::FindSpace(absl::string_view name) {
  if (Forked()) return ForkedStatus();
  return kvstow::FindSpace(impl_->core, name);
}

bool Client::IsStale(const SpaceInfo& space) const {
  return !Forked() && kvstow::IsStale(impl_->core, space);
}

absl::StatusOr<std::string> Client::SendCalibration(std::span<const uint8_t> blob) {
  if (Forked()) return ForkedStatus();
  KVSTOW_ASSIGN_OR_RETURN(
      const grpc::ByteBuffer answer,
      CallClientStreaming(impl_->core, "/kvstow.v1.KvCache/SendCalibration",
                          PiecesOf(blob, v1::SendCalibrationRequest()), impl_->core.Deadline()));
  v1::SendCalibrationResponse response;
  KVSTOW_RETURN_IF_ERROR(ReadMessage(answer, response));
  return response.calibration();
}

absl::Status Client::SendStatistics(absl::string_view space, std::span<const uint8_t> blob) {
  if (Forked()) return ForkedStatus();
  const std::string name(space);
  const Time deadline = impl_->core.Deadline();
  const auto send = [&] {
    v1::SendStatisticsRequest first;
    first.set_space(name);
    first.set_fingerprint(impl_->core.payloads.Find(name)->fingerprint);
    return CallClientStreaming(impl_->core, "/kvstow.v1.KvCache/SendStatistics",
                               PiecesOf(blob, std::move(first)), deadline)
        .status();
  };
  const bool known = !impl_->core.payloads.Find(name)->fingerprint.empty();
  const absl::Status sent = known ? send() : absl::NotFoundError("");
  if (!IsOtherSpace(sent)) return sent;
  const absl::Status opened = OpenAgain(impl_->core, name, deadline);
  return opened.ok() ? send() : opened;
}

PrefixHit Client::Lookup(absl::string_view space, std::span<const std::string> keys, bool lease) {
  if (Forked()) return {.tiers = {}, .status = ForkedStatus()};
  auto request = KeyedRequest<v1::LookupRequest>(space, keys);
  request.set_lease(lease);
  const Time deadline = impl_->core.Deadline();
  const absl::StatusOr<v1::LookupResponse> response = [&]() -> absl::StatusOr<v1::LookupResponse> {
    request.set_fingerprint(impl_->core.payloads.Find(request.space())->fingerprint);
    Node& node = impl_->core.nodes.current();
    KVSTOW_ASSIGN_OR_RETURN(auto direct, LookupDirect(impl_->core, node, request, deadline));
    if (direct.has_value()) {
      NoteAnswer(impl_->core, node, *direct);
      return *std::move(direct);
    }
    return CallInSpace<v1::LookupResponse>(impl_->core, "Lookup", request, deadline);
  }();
  PrefixHit hit;
  if (!response.ok()) {
    hit.status = response.status();
    return hit;
  }
  hit.pages = std::min<uint32_t>(response->pages(), static_cast<uint32_t>(keys.size()));
  hit.tokens = response->tokens();
  hit.lease = response->lease();
  for (const v1::PageInfo& info : response->info()) hit.tiers.push_back(info.tier());
  hit.tiers.resize(hit.pages);
  return hit;
}

absl::Status Client::Release(uint64_t lease) {
  if (Forked()) return ForkedStatus();
  Nodes& nodes = impl_->core.nodes;
  // Another node's lease runs out by itself.
  if (lease != 0 && nodes.LeaseAt(nodes.current(), lease) == 0) return absl::OkStatus();
  v1::ReleaseRequest request;
  request.set_lease(lease);
  return CallCache<v1::ReleaseResponse>(impl_->core, "Release", request, impl_->core.Deadline())
      .status();
}

std::unique_ptr<PageBuffer> Client::NewBuffer(size_t bytes) {
  if (Forked()) return std::make_unique<PageBuffer>(bytes);
  Nodes& nodes = impl_->core.nodes;
  for (;;) {
    Node& node = nodes.current();
    auto buffer = node.local.NewBuffer(bytes);
    // A node that fails meanwhile shares nothing, and another may.
    if (buffer->shared() || &node == &nodes.current()) return buffer;
  }
}

void Client::PutAsync(absl::string_view space, std::vector<PagePut> pages, PutDone done) {
  if (Forked()) return done(ForkedResults<PutResult>(pages.size()));
  impl_->Start(std::make_shared<PutBatch>(std::string(space), std::move(pages),
                                          impl_->core.Deadline(), std::move(done)));
}

void Client::GetLayersAsync(const SpaceInfo& space, uint64_t lease, std::vector<PageGet> pages,
                            uint32_t layers_per_run, LayersDone on_layers, GetDone done) {
  if (Forked()) return done(ForkedResults<GetResult>(pages.size()));
  StartLayerGet(impl_->core, *impl_->transport, space, lease, std::move(pages), layers_per_run,
                std::move(on_layers), std::move(done));
}

void Client::GetProgressiveAsync(absl::string_view space, uint64_t lease,
                                 std::vector<PageGet> pages, BaseDone on_base, GetDone done) {
  if (Forked()) return done(ForkedResults<GetResult>(pages.size()));
  StartProgressiveGet(impl_->core, *impl_->transport, std::string(space), lease, std::move(pages),
                      std::move(on_base), std::move(done));
}

std::unique_ptr<LayerPut> Client::PutLayers(const SpaceInfo& space, std::vector<PagePut> pages,
                                            PutDone done) {
  if (Forked()) {
    done(ForkedResults<PutResult>(pages.size()));
    return std::make_unique<ParentsLayerPut>(nullptr);
  }
  return std::make_unique<ParentsLayerPut>(
      StartLayerPut(impl_->core, *impl_->transport, space, std::move(pages), std::move(done)));
}

void Client::GetAsync(absl::string_view space, uint64_t lease, std::vector<PageGet> pages,
                      GetDone done) {
  if (Forked()) return done(ForkedResults<GetResult>(pages.size()));
  auto batch = std::make_shared<GetBatch>(std::string(space), std::move(pages),
                                          impl_->core.Deadline(), std::move(done));
  batch->lease = lease;
  impl_->Start(std::move(batch));
}

std::future<std::vector<PutResult>> Client::Put(absl::string_view space,
                                                std::vector<PagePut> pages) {
  auto promise = std::make_shared<std::promise<std::vector<PutResult>>>();
  auto future = promise->get_future();
  PutAsync(space, std::move(pages),
           [promise](std::vector<PutResult> results) { promise->set_value(std::move(results)); });
  return future;
}

std::future<std::vector<GetResult>> Client::Get(absl::string_view space, uint64_t lease,
                                                std::vector<PageGet> pages) {
  auto promise = std::make_shared<std::promise<std::vector<GetResult>>>();
  auto future = promise->get_future();
  GetAsync(space, lease, std::move(pages),
           [promise](std::vector<GetResult> results) { promise->set_value(std::move(results)); });
  return future;
}

std::future<std::vector<GetResult>> Client::GetSummaries(absl::string_view space, uint64_t lease,
                                                         std::vector<PageGet> pages) {
  auto promise = std::make_shared<std::promise<std::vector<GetResult>>>();
  auto future = promise->get_future();
  if (Forked()) {
    promise->set_value(ForkedResults<GetResult>(pages.size()));
    return future;
  }
  auto batch = std::make_shared<GetBatch>(
      std::string(space), std::move(pages), impl_->core.Deadline(),
      [promise](std::vector<GetResult> results) { promise->set_value(std::move(results)); });
  batch->lease = lease;
  batch->summaries = true;
  impl_->Start(std::move(batch));
  return future;
}

absl::StatusOr<std::vector<ReportResult>> Client::ReportAttention(
    absl::string_view space, std::span<const PageReport> reports) {
  if (Forked()) return ForkedStatus();
  std::vector<ReportResult> out;
  const Time deadline = impl_->core.Deadline();
  while (out.size() < reports.size()) {
    v1::ReportAttentionRequest request;
    request.set_space(std::string(space));
    const size_t first = out.size();
    uint64_t bytes = 0;
    for (size_t i = first; i < reports.size(); ++i) {
      bytes += reports[i].column.scores.size() + kReportOverhead;
      if (bytes > kMaxChunkBytes) break;
      AddReport(reports[i], *request.add_pages());
    }
    if (request.pages().empty()) {
      out.push_back({PageOutcome::kRefused, "the column is too large for a call"});
      continue;
    }
    KVSTOW_ASSIGN_OR_RETURN(const v1::ReportAttentionResponse response,
                            CallInSpace<v1::ReportAttentionResponse>(impl_->core, "ReportAttention",
                                                                     request, deadline));
    if (response.results_size() != request.pages_size()) {
      return absl::InternalError(absl::StrCat("the server answered ", response.results_size(),
                                              " of ", request.pages_size(), " reports"));
    }
    for (const v1::AttentionResult& result : response.results()) {
      out.push_back({OutcomeOf(result.status()), result.message()});
    }
  }
  return out;
}

absl::StatusOr<std::vector<PageOutcome>> Client::Delete(absl::string_view space,
                                                        std::span<const std::string> keys,
                                                        bool force) {
  if (Forked()) return ForkedStatus();
  auto request = KeyedRequest<v1::DeleteRequest>(space, keys);
  request.set_force(force);
  KVSTOW_ASSIGN_OR_RETURN(
      const v1::DeleteResponse response,
      CallInSpace<v1::DeleteResponse>(impl_->core, "Delete", request, impl_->core.Deadline()));
  return OutcomesOf(response.status(), keys.size());
}

absl::StatusOr<uint64_t> Client::DropSpace(absl::string_view space) {
  if (Forked()) return ForkedStatus();
  v1::DropSpaceRequest request;
  request.set_space(std::string(space));
  KVSTOW_ASSIGN_OR_RETURN(const v1::DropSpaceResponse response,
                          CallInSpace<v1::DropSpaceResponse>(impl_->core, "DropSpace", request,
                                                             impl_->core.Deadline()));
  return response.pages();
}

absl::StatusOr<std::vector<PageOutcome>> Client::Pin(absl::string_view space,
                                                     std::span<const std::string> keys,
                                                     bool pinned) {
  if (Forked()) return ForkedStatus();
  auto request = KeyedRequest<v1::PinRequest>(space, keys);
  request.set_unpin(!pinned);
  KVSTOW_ASSIGN_OR_RETURN(
      const v1::PinResponse response,
      CallInSpace<v1::PinResponse>(impl_->core, "Pin", request, impl_->core.Deadline()));
  return OutcomesOf(response.status(), keys.size());
}

ServingNode Client::serving() const {
  return Forked() ? ServingNode() : impl_->core.nodes.serving();
}

absl::StatusOr<std::string> Client::Call(absl::string_view method, absl::string_view request) {
  if (Forked()) return ForkedStatus();
  KVSTOW_ASSIGN_OR_RETURN(
      const Answer answer,
      CallUnary(impl_->core, std::string(method), BufferOf(request), impl_->core.Deadline()));
  return BytesOf(answer.message);
}

absl::Status Client::CallStreaming(absl::string_view method, absl::string_view request,
                                   std::function<void(absl::string_view)> on_message) {
  if (Forked()) return ForkedStatus();
  return CallServerStreaming(
      impl_->core, std::string(method), BufferOf(request),
      [&](const grpc::ByteBuffer& message) { on_message(BytesOf(message)); });
}

}  // namespace kvstow
