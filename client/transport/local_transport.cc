#include <atomic>
#include <span>
#include <utility>
#include <vector>

#include "client/transport/local_messages.h"
#include "client/transport/transports.h"

namespace kvstow {
namespace {

// Return the bytes of a page that can go through shared memory, and none for another page.
// Summaries, and pages that are still being filled, go over streams.
std::span<const uint8_t> BytesToShare(const GetBatch& batch, size_t page) {
  const PageGet& get = batch.pages[page];
  return batch.summaries || get.on_gpu ? std::span<const uint8_t>() : get.out;
}
std::span<const uint8_t> BytesToShare(const PutBatch& batch, size_t page) {
  const PagePut& put = batch.pages[page];
  const bool can_go = batch.progress == nullptr && put.columns.empty() && !put.on_gpu;
  return can_go ? put.raw : std::span<const uint8_t>();
}

v1::LocalGetPage RequestOf(const GetBatch& batch, size_t page, v1::SlotRange range) {
  v1::LocalGetPage out = LocalRequestOf(batch, page);
  *out.mutable_to() = std::move(range);
  return out;
}
v1::LocalPutPage RequestOf(const PutBatch& batch, size_t page, v1::SlotRange range) {
  v1::LocalPutPage out = LocalRequestOf(batch, page);
  *out.mutable_from() = std::move(range);
  return out;
}

// The next transport asks again, and the server checks.
void NoteDamage(GetBatch& batch) { batch.checked = false; }
void NoteDamage(PutBatch&) {}

// The session's thread takes the answers, one after the other. The call counts as a batch of its
// own: the session may end with it, on another thread, after the batch has ended.
template <typename Batch>
struct LocalCall {
  ClientCore& core;
  const std::shared_ptr<Batch> batch;
  const Transport::Next next;
  std::shared_ptr<LocalSession> session;  // which must outlive its requests
  std::atomic<size_t> open;
  const Node& node;
  const uint64_t lease;  // that the node is told of
};

// Return whether the next transport should ask although there is an answer.
bool AsksAgain(LocalCall<GetBatch>& call, const GetResult& result) {
  if (!IsForeignLease(call.core, call.node, call.lease, result.outcome)) return false;
  call.batch->lease = 0;
  return true;
}
bool AsksAgain(LocalCall<PutBatch>& call, const PutResult& result) {
  return MayStoreElsewhere(call.core, result);
}

template <typename Batch>
void Take(const std::shared_ptr<LocalCall<Batch>>& call, size_t page,
          const absl::StatusOr<v1::LocalReply>& reply) {
  if (reply.ok()) {
    auto result = ResultOf(call->batch->pages[page], *reply);
    if (!result.has_value()) {
      NoteDamage(*call->batch);
    } else if (!AsksAgain(*call, *result)) {
      call->batch->Answer(page, *std::move(result));
    }
  }
  if (--call->open > 0) return;
  GoOn(call->core, *call->batch, call->next);
  call->core.executor.Run([call] {
    call->session.reset();
    call->core.calls.RemoveBatch();
  });
}

template <typename Batch>
void Start(ClientCore& core, std::shared_ptr<Batch> batch, Transport::Next next) {
  const Node& node = core.nodes.current();
  const std::shared_ptr<LocalSession> session = node.local.session();
  const std::string& fingerprint = batch->payload->fingerprint;
  if (session == nullptr || fingerprint.empty()) return next();
  std::vector<LocalSession::Page> requests;
  std::vector<size_t> todo;
  for (const size_t i : batch->Missing()) {
    const std::span<const uint8_t> bytes = BytesToShare(*batch, i);
    auto range = session->RangeOf(bytes);
    if (!range.has_value()) continue;
    todo.push_back(i);
    requests.push_back(
        {.request = RequestOf(*batch, i, *std::move(range)), .bytes = bytes, .done = nullptr});
  }
  if (todo.empty()) return next();
  core.calls.AddBatch();
  const std::shared_ptr<LocalCall<Batch>> call(
      new LocalCall<Batch>{core, batch, std::move(next), session, todo.size(), node,
                           core.nodes.LeaseAt(node, batch->lease)});
  for (size_t n = 0; n < todo.size(); ++n) {
    requests[n].done = [call, i = todo[n]](const absl::StatusOr<v1::LocalReply>& reply) {
      Take(call, i, reply);
    };
  }
  session->Start(batch->space, fingerprint, call->lease, std::move(requests), batch->deadline);
}

}  // namespace

std::unique_ptr<Transport> MakeLocalTransport(ClientCore& core) {
  return MakeTransport(core, [](ClientCore& c, auto batch, Transport::Next next) {
    Start(c, std::move(batch), std::move(next));
  });
}

}  // namespace kvstow
