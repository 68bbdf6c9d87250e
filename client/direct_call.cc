#include "client/direct_call.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "client/convert.h"
#include "client/page_landing.h"
#include "client/put_call.h"
#include "client/put_payload.h"
#include "kvstow/v1/direct.pb.h"
#include "proto/wire/direct_socket.h"

namespace kvstow {
namespace {

constexpr int kMostLookedUp = 768;  // keys, of at most 64 bytes

// What Get and Put have in common.
template <typename Page, typename Result>
struct DirectCall {
  ClientCore& core;
  const std::string space;
  std::vector<Page> pages;
  std::function<void(std::vector<Result>)> done;
  const Time deadline;
  const std::shared_ptr<SpacePayload> payload;
  Answers<Result> answers;
  const Time start = Clock::Real().Now();
  uint64_t raw_bytes = 0;  // that came or were stored
};

struct GetCall : DirectCall<PageGet, GetResult> {
  const uint64_t lease;
  const std::function<void(size_t, const GetResult&)> each;  // as GetBatch::each
  const LandingKind kind;
  const PageDecoder decoder = nullptr;  // as GetBatch::decoder
  bool refused = false;                 // the connection is good, and the pages go over a stream

  void Answer(size_t page, GetResult result) {
    raw_bytes += result.bytes;
    if (each) each(page, result);
    answers.Set(page, std::move(result));
  }
  void StartStream(std::vector<PageGet> rest, Client::GetDone rest_done) const {
    GetBatch batch{space, lease, std::move(rest), std::move(rest_done)};
    batch.checked = false;
    batch.decoder = decoder;
    StartGet(core, std::move(batch), deadline);
  }

  absl::Status Ask(const DirectSocket& socket, size_t first, size_t count) const {
    v1::DirectRequest request;
    v1::DirectGet& get = *request.mutable_get();
    get.set_space(space);
    get.set_fingerprint(payload->fingerprint);
    get.set_lease(lease);
    get.set_payload(kind.encoded ? v1::ENCODED : v1::RAW);
    get.set_checked(true);
    for (size_t i = first; i < first + count; ++i) ToProto(pages[i], *get.add_pages());
    return socket.Send(request, {}, 0, deadline);
  }

  // A page that is not what its digests say has no answer: a stream asks for it again.
  absl::Status Take(const DirectSocket& socket, size_t i) {
    v1::DirectReply reply;
    uint64_t bytes = 0;
    KVSTOW_RETURN_IF_ERROR(socket.ReceiveFrame(reply, bytes, deadline));
    refused = reply.has_refused();
    if (refused) return absl::OkStatus();
    if (!reply.has_got() || bytes != reply.got().payload_bytes())
      return absl::InternalError("the server sent something else than the page that was due");
    KVSTOW_RETURN_IF_ERROR(CheckKey(pages[i].key, reply.got()));
    PageLanding landing(pages[i], *payload, kind, core.options, decoder);
    if (const absl::Status s = landing.Begin(reply.got()); !s.ok()) {
      KVSTOW_ASSIGN_OR_RETURN(GetResult result, landing.Finish());
      Answer(i, std::move(result));
      return s;
    }
    while (!landing.whole()) {
      const std::span<uint8_t> room = landing.Room();
      const auto piece = room.first(std::min(room.size(), kDirectPieceBytes));
      KVSTOW_RETURN_IF_ERROR(socket.Receive(piece, deadline));
      landing.Filled(piece.size());
    }
    KVSTOW_ASSIGN_OR_RETURN(GetResult result, landing.Finish());
    if (!landing.damaged()) Answer(i, std::move(result));
    return absl::OkStatus();
  }

  absl::Status Exchange(const DirectSocket& socket) {
    for (size_t first = 0; first < pages.size() && !refused; first += kMaxDirectPages) {
      const size_t count = std::min(kMaxDirectPages, pages.size() - first);
      KVSTOW_RETURN_IF_ERROR(Ask(socket, first, count));
      for (size_t i = first; i < first + count && !refused; ++i)
        KVSTOW_RETURN_IF_ERROR(Take(socket, i));
    }
    payload->get.Took(kind.encoded, raw_bytes, Clock::Real().Now() - start);
    return absl::OkStatus();
  }
};

struct PutCall : DirectCall<PagePut, PutResult> {
  const bool encoded;
  const PageCoder coder;             // as StartPut's
  std::vector<size_t> waiting = {};  // pages that were sent and have no answer

  void Answer(size_t page, PutResult result) { answers.Set(page, std::move(result)); }
  void StartStream(std::vector<PagePut> rest, Client::PutDone rest_done) const {
    StartPut(core, space, std::move(rest), deadline, std::move(rest_done), nullptr, coder);
  }

  absl::Status SendPage(const DirectSocket& socket, size_t i,
                        const std::shared_ptr<PutCall>& self) {
    const PagePut& page = pages[i];
    absl::StatusOr<PutPayload> made =
        MakePutPayload(page, *payload, encoded, std::nullopt, self, coder);
    if (!made.ok()) {
      Answer(i, RefusedPut(made.status().message()));
      return absl::OkStatus();
    }
    v1::DirectRequest request;
    v1::DirectPut& put = *request.mutable_put();
    put.set_space(space);
    put.set_fingerprint(payload->fingerprint);
    put.set_payload(encoded ? v1::ENCODED : v1::RAW);
    put.mutable_page()->Swap(&made->begin);
    put.set_parent_key(ParentKeyOf(pages, i));
    waiting.push_back(i);
    if (encoded) return socket.Send(request, made->parts, 0, deadline);
    // Read once: each piece is sent while it is in the cache for the digest, which goes last.
    KVSTOW_RETURN_IF_ERROR(
        socket.Send(request, {}, TotalBytes(made->parts) + sizeof(Digest128), deadline));
    Xxh3Stream digest;
    for (std::span<const uint8_t> left = page.raw; !left.empty();) {
      const auto piece = left.first(std::min(left.size(), kDirectPieceBytes));
      digest.Update(piece);
      KVSTOW_RETURN_IF_ERROR(socket.SendBytes(piece, deadline));
      left = left.subspan(piece.size());
    }
    for (size_t column = 1; column < made->parts.size(); ++column)
      KVSTOW_RETURN_IF_ERROR(socket.SendBytes(made->parts[column].span(), deadline));
    return socket.SendBytes(digest.Finish().bytes, deadline);
  }

  // False when the server refused: the rest goes over a stream, which says how to go on.
  absl::StatusOr<bool> TakeAnswer(const DirectSocket& socket) {
    v1::DirectReply reply;
    uint64_t bytes = 0;
    KVSTOW_RETURN_IF_ERROR(socket.ReceiveFrame(reply, bytes, deadline));
    const size_t i = waiting.front();
    waiting.erase(waiting.begin());
    if (reply.has_refused()) return false;
    if (!reply.has_put() || bytes != 0)
      return absl::InternalError("the server sent something else than the answer that was due");
    if (reply.put().status() == v1::STORED) raw_bytes += pages[i].raw.size();
    Answer(i, PutResultOf(reply.put()));
    return true;
  }

  // While a page is stored, the next one is on its way.
  absl::Status Exchange(const DirectSocket& socket, const std::shared_ptr<PutCall>& self) {
    bool taken = true;
    for (size_t i = 0; i < pages.size() && taken; ++i) {
      KVSTOW_RETURN_IF_ERROR(SendPage(socket, i, self));
      if (waiting.size() < 2) continue;
      KVSTOW_ASSIGN_OR_RETURN(taken, TakeAnswer(socket));
    }
    while (!waiting.empty()) KVSTOW_RETURN_IF_ERROR(TakeAnswer(socket).status());
    payload->put.Took(encoded, raw_bytes, Clock::Real().Now() - start);
    return absl::OkStatus();
  }
};

template <typename Call>
DirectPool::Outcome Over(const std::shared_ptr<Call>& call, absl::Status status) {
  const bool all = call->answers.Missing().empty();
  return {std::move(status), [call, all] {
            if (!all) return call->core.executor.Run([call] { GoOnOverStream(call); });
            call->done(call->answers.Take());
            call->core.calls.RemoveBatch();
          }};
}

}  // namespace

bool StartDirectGet(ClientCore& core, GetBatch& batch, Time deadline) {
  if (!core.options_status.ok() || batch.pages.empty() || batch.summaries) return false;
  if (std::ranges::any_of(batch.pages, &PageGet::on_gpu)) return false;
  std::shared_ptr<SpacePayload> payload = core.payloads.Find(batch.space);
  if (payload->fingerprint.empty()) return false;
  DirectPool::Connection* const connection = core.direct.Take();
  if (connection == nullptr) return false;
  core.calls.AddBatch();
  const size_t n = batch.pages.size();
  const LandingKind kind{.encoded = payload->get.EncodedNext()};
  auto call = std::make_shared<GetCall>(
      GetCall{{core, std::move(batch.space), std::move(batch.pages), std::move(batch.done),
               deadline, std::move(payload), Answers<GetResult>(n)},
              batch.lease,
              std::move(batch.each),
              kind,
              std::move(batch.decoder)});
  core.direct.Start(connection, [call = std::move(call)](const DirectSocket& socket) {
    return Over(call, call->Exchange(socket));
  });
  return true;
}

bool StartDirectPut(ClientCore& core, const std::string& space, std::vector<PagePut>& pages,
                    Client::PutDone& done, Time deadline, PageCoder coder) {
  const bool whole =
      std::ranges::all_of(pages, [](const PagePut& page) { return CannotPut(page).empty(); });
  if (!core.options_status.ok() || pages.empty() || !whole) return false;
  std::shared_ptr<SpacePayload> payload = core.payloads.Find(space);
  if (payload->fingerprint.empty()) return false;
  DirectPool::Connection* const connection = core.direct.Take();
  if (connection == nullptr) return false;
  core.calls.AddBatch();
  const size_t n = pages.size();
  std::vector<const PagePut*> all;
  for (const PagePut& page : pages) all.push_back(&page);
  const bool encoded = GoEncoded(*payload, all);
  auto call =
      std::make_shared<PutCall>(PutCall{{core, space, std::move(pages), std::move(done), deadline,
                                         std::move(payload), Answers<PutResult>(n)},
                                        encoded,
                                        std::move(coder)});
  core.direct.Start(connection, [call = std::move(call)](const DirectSocket& socket) {
    return Over(call, call->Exchange(socket, call));
  });
  return true;
}

absl::StatusOr<std::optional<v1::LookupResponse>> LookupDirect(ClientCore& core,
                                                               const v1::LookupRequest& request) {
  if (!core.options_status.ok() || request.keys_size() > kMostLookedUp) return std::nullopt;
  if (request.fingerprint().empty()) return std::nullopt;
  DirectPool::Connection* const connection = core.direct.Take();
  if (connection == nullptr) return std::nullopt;
  const Time deadline = core.Deadline();
  std::optional<v1::LookupResponse> response;
  const absl::Status asked = core.direct.RunHere(connection, [&](const DirectSocket& socket) {
    v1::DirectRequest frame;
    request.SerializeToString(frame.mutable_lookup());
    KVSTOW_RETURN_IF_ERROR(socket.Send(frame, {}, 0, deadline));
    v1::DirectReply reply;
    uint64_t bytes = 0;
    KVSTOW_RETURN_IF_ERROR(socket.ReceiveFrame(reply, bytes, deadline));
    if (reply.has_refused()) return absl::OkStatus();
    if (!response.emplace().ParseFromString(reply.looked_up()) || bytes != 0)
      return absl::InternalError("the server sent something else than what was looked up");
    return absl::OkStatus();
  });
  if (absl::IsDeadlineExceeded(asked)) return Explain(asked, core.options.address);
  if (!asked.ok()) response.reset();
  return response;
}

}  // namespace kvstow
