#include "client/transport/transport.h"

#include <span>

#include "client/payload/put_payload.h"

namespace kvstow {
namespace {

void Move(Transport& transport, std::shared_ptr<GetBatch> batch, Transport::Next next) {
  transport.Get(std::move(batch), std::move(next));
}
void Move(Transport& transport, std::shared_ptr<PutBatch> batch, Transport::Next next) {
  transport.Put(std::move(batch), std::move(next));
}

// Moves a batch through the transports of `order`, until every page has its answer.
template <typename Batch>
void MoveFrom(std::span<const std::unique_ptr<Transport>> order, std::shared_ptr<Batch> batch,
              Transport::Next next) {
  if (order.empty() || batch->AllAnswered()) return next();
  Transport& first = *order.front();
  auto rest = [left = order.subspan(1), batch, next = std::move(next)]() mutable {
    MoveFrom(left, std::move(batch), std::move(next));
  };
  Move(first, std::move(batch), std::move(rest));
}

void RefuseWhatCannotGo(const GetBatch&) {}
void RefuseWhatCannotGo(PutBatch& batch) {
  for (size_t i = 0; i < batch.pages.size(); ++i) {
    const absl::string_view why = CannotPut(batch.pages[i]);
    if (!why.empty() && !batch.Has(i)) batch.Answer(i, PageOutcome::kRefused, why);
  }
}

template <typename Batch>
void Start(ClientCore& core, Transport& transport, std::shared_ptr<Batch> batch) {
  core.calls.AddBatch();
  batch->payload = core.payloads.Find(batch->space);
  RefuseWhatCannotGo(*batch);
  if (!core.options_status.ok()) AnswerMissing(*batch, core.options_status);
  const bool ended = batch->AllAnswered();
  auto end = [&core, batch] {
    batch->End();
    core.calls.RemoveBatch();
  };
  if (ended) return core.executor.Run(std::move(end));
  Move(transport, std::move(batch), std::move(end));
}

}  // namespace

void TransportList::Get(std::shared_ptr<GetBatch> batch, Next next) {
  MoveFrom(std::span(order_), std::move(batch), std::move(next));
}

void TransportList::Put(std::shared_ptr<PutBatch> batch, Next next) {
  MoveFrom(std::span(order_), std::move(batch), std::move(next));
}

void StartBatch(ClientCore& core, Transport& transport, std::shared_ptr<GetBatch> batch) {
  Start(core, transport, std::move(batch));
}

void StartBatch(ClientCore& core, Transport& transport, std::shared_ptr<PutBatch> batch) {
  Start(core, transport, std::move(batch));
}

}  // namespace kvstow
