#include <algorithm>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/digest.h"
#include "base/status_macros.h"
#include "client/payload/messages.h"
#include "client/payload/page_landing.h"
#include "client/payload/put_payload.h"
#include "client/transport/transports.h"
#include "kvstow/v1/direct.pb.h"
#include "proto/wire/direct_socket.h"

namespace kvstow {
namespace {

// The common part of Get and Put.
template <typename Batch>
struct DirectCall {
  ClientCore& core;
  const Node& node;
  const std::shared_ptr<Batch> batch;
  const Transport::Next next;
  const std::vector<size_t> todo;  // pages of the batch that go over the connection
  Trip trip;
};

struct GetCall : DirectCall<GetBatch> {
  bool refused = false;  // the connection is good, and the pages go over a stream
  const uint64_t lease = core.nodes.LeaseAt(node, batch->lease);  // that the node is told of

  absl::Status Ask(const DirectSocket& socket, size_t first, size_t count) const {
    v1::DirectRequest request;
    v1::DirectGet& get = *request.mutable_get();
    get.set_space(batch->space);
    get.set_fingerprint(batch->payload->fingerprint);
    get.set_lease(lease);
    get.set_payload(trip.encoded ? v1::ENCODED : v1::RAW);
    get.set_checked(true);
    for (size_t n = first; n < first + count; ++n) ToProto(batch->pages[todo[n]], *get.add_pages());
    return socket.Send(request, {}, 0, batch->deadline);
  }

  // A page that does not match its digests, or cannot be decoded here, gets no answer: a stream
  // asks for it again.
  absl::Status Take(const DirectSocket& socket, size_t i) {
    const PageGet& page = batch->pages[i];
    v1::DirectReply reply;
    uint64_t bytes = 0;
    KVSTOW_RETURN_IF_ERROR(socket.ReceiveFrame(reply, bytes, batch->deadline));
    refused = reply.has_refused();
    if (refused) return absl::OkStatus();
    if (!reply.has_got() || bytes != reply.got().payload_bytes())
      return absl::InternalError("the server sent something else than the page that was due");
    KVSTOW_RETURN_IF_ERROR(CheckKey(page.key, reply.got()));
    PageLanding landing(page, *batch->payload, {.encoded = trip.encoded}, core.options,
                        batch->decoder);
    const absl::Status begun = landing.Begin(reply.got());
    while (begun.ok() && !landing.whole()) {
      const std::span<uint8_t> room = landing.Room();
      const auto piece = room.first(std::min(room.size(), kDirectPieceBytes));
      KVSTOW_RETURN_IF_ERROR(socket.Receive(piece, batch->deadline));
      landing.Filled(piece.size());
    }
    KVSTOW_ASSIGN_OR_RETURN(GetResult result, landing.Finish());
    if (landing.damaged()) {
      batch->checked = false;
      return begun;
    }
    if (landing.lacks_calibration()) {
      batch->payload->get.StayRaw();
      return begun;
    }
    if (IsForeignLease(core, node, lease, result.outcome)) {
      batch->lease = 0;
      return begun;
    }
    trip.raw_bytes += result.bytes;
    batch->Answer(i, std::move(result));
    return begun;
  }

  absl::Status Exchange(const DirectSocket& socket) {
    for (size_t first = 0; first < todo.size() && !refused; first += kMaxDirectPages) {
      const size_t count = std::min(kMaxDirectPages, todo.size() - first);
      KVSTOW_RETURN_IF_ERROR(Ask(socket, first, count));
      for (size_t n = first; n < first + count && !refused; ++n)
        KVSTOW_RETURN_IF_ERROR(Take(socket, todo[n]));
    }
    trip.End();
    return absl::OkStatus();
  }
};

struct PutCall : DirectCall<PutBatch> {
  std::vector<size_t> waiting = {};  // pages that were sent and have no answer

  absl::Status SendPage(const DirectSocket& socket, size_t i) {
    const PagePut& page = batch->pages[i];
    absl::StatusOr<PutPayload> made =
        MakePutPayload(page, *batch->payload, trip.encoded, std::nullopt, batch, batch->coder);
    if (!made.ok()) {
      batch->Answer(i, PageOutcome::kRefused, made.status().message());
      return absl::OkStatus();
    }
    v1::DirectRequest request;
    v1::DirectPut& put = *request.mutable_put();
    put.set_space(batch->space);
    put.set_fingerprint(batch->payload->fingerprint);
    put.set_payload(trip.encoded ? v1::ENCODED : v1::RAW);
    put.mutable_page()->Swap(&made->begin);
    put.set_parent_key(ParentKeyOf(batch->pages, i));
    waiting.push_back(i);
    const Time deadline = batch->deadline;
    if (trip.encoded) return socket.Send(request, made->parts, 0, deadline);
    // Each piece is read once: it is sent while the digest has it in the cache. The digest goes
    // last.
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

  // Returns false when the server refused: the rest goes over a stream, which says how to go on.
  absl::StatusOr<bool> TakeAnswer(const DirectSocket& socket) {
    v1::DirectReply reply;
    uint64_t bytes = 0;
    KVSTOW_RETURN_IF_ERROR(socket.ReceiveFrame(reply, bytes, batch->deadline));
    const size_t i = waiting.front();
    waiting.erase(waiting.begin());
    if (reply.has_refused()) return false;
    if (!reply.has_put() || bytes != 0)
      return absl::InternalError("the server sent something else than the answer that was due");
    PutResult result = PutResultOf(reply.put());
    if (MayStoreElsewhere(core, result)) return true;
    if (result.outcome == PageOutcome::kStored) trip.raw_bytes += batch->pages[i].raw.size();
    batch->Answer(i, std::move(result));
    return true;
  }

  // While a page is stored, the next one is on its way.
  absl::Status Exchange(const DirectSocket& socket) {
    bool taken = true;
    for (size_t n = 0; n < todo.size() && taken; ++n) {
      KVSTOW_RETURN_IF_ERROR(SendPage(socket, todo[n]));
      if (waiting.size() < 2) continue;
      KVSTOW_ASSIGN_OR_RETURN(taken, TakeAnswer(socket));
    }
    while (!waiting.empty()) KVSTOW_RETURN_IF_ERROR(TakeAnswer(socket).status());
    trip.End();
    return absl::OkStatus();
  }
};

template <typename Batch>
std::vector<size_t> OfHost(const Batch& batch) {
  std::vector<size_t> out = batch.Missing();
  std::erase_if(out, [&](size_t page) { return batch.pages[page].on_gpu; });
  return out;
}

// Return the pages that can go. Summaries, and pages that are still being filled, go over streams.
std::vector<size_t> Todo(const GetBatch& batch) {
  return batch.summaries ? std::vector<size_t>() : OfHost(batch);
}
std::vector<size_t> Todo(const PutBatch& batch) {
  return batch.progress != nullptr ? std::vector<size_t>() : OfHost(batch);
}

Trip TripOf(const GetBatch& batch, std::span<const size_t>) {
  PayloadChoice& choice = batch.payload->get;
  return {choice, choice.EncodedNext()};
}
Trip TripOf(const PutBatch& batch, std::span<const size_t> todo) {
  return {batch.payload->put, GoEncoded(*batch.payload, batch.pages, todo)};
}

template <typename Batch>
void Start(ClientCore& core, std::shared_ptr<Batch> batch, Transport::Next next) {
  std::vector<size_t> todo = Todo(*batch);
  if (todo.empty() || batch->payload->fingerprint.empty()) return next();
  Node& node = core.nodes.current();
  DirectPool::Connection* const connection = node.direct.Take();
  if (connection == nullptr) return next();
  using Call = std::conditional_t<std::is_same_v<Batch, GetBatch>, GetCall, PutCall>;
  const Trip trip = TripOf(*batch, todo);
  auto call = std::make_shared<Call>(
      Call{{core, node, std::move(batch), std::move(next), std::move(todo), trip}});
  node.direct.Start(connection, [call = std::move(call)](const DirectSocket& socket) {
    absl::Status status = call->Exchange(socket);
    return DirectPool::Outcome{std::move(status),
                               [call] { GoOn(call->core, *call->batch, call->next); }};
  });
}

}  // namespace

std::unique_ptr<Transport> MakeDirectTransport(ClientCore& core) {
  return MakeTransport(core, [](ClientCore& c, auto batch, Transport::Next next) {
    Start(c, std::move(batch), std::move(next));
  });
}

}  // namespace kvstow
