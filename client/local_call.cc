#include "client/local_call.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "client/direct_call.h"
#include "client/gpu_call.h"
#include "client/local_pages.h"
#include "client/put_call.h"

namespace kvstow {
namespace {

// How Get and Put differ.
struct GetKind {
  using Page = PageGet;
  using Result = GetResult;
  using Done = Client::GetDone;
  static std::span<const uint8_t> Bytes(const PageGet& page) { return page.out; }
  static bool CanGo(const PageGet& page) { return !page.on_gpu; }
  static v1::LocalGetPage Request(std::span<const PageGet> pages, size_t i, v1::SlotRange range) {
    v1::LocalGetPage out = LocalRequestOf(pages, i);
    *out.mutable_to() = std::move(range);
    return out;
  }
  static void StartStream(ClientCore& core, std::string space, uint64_t lease,
                          std::vector<PageGet> pages, Time deadline, Done done) {
    GetBatch batch{std::move(space), lease, std::move(pages), std::move(done)};
    batch.checked = false;
    StartGet(core, std::move(batch), deadline);
  }
};

struct PutKind {
  using Page = PagePut;
  using Result = PutResult;
  using Done = Client::PutDone;
  static std::span<const uint8_t> Bytes(const PagePut& page) { return page.raw; }
  static bool CanGo(const PagePut& page) { return page.columns.empty() && !page.on_gpu; }
  static v1::LocalPutPage Request(std::span<const PagePut> pages, size_t i, v1::SlotRange range) {
    v1::LocalPutPage out = LocalRequestOf(pages, i);
    *out.mutable_from() = std::move(range);
    return out;
  }
  static void StartStream(ClientCore& core, std::string space, uint64_t, std::vector<PagePut> pages,
                          Time deadline, Done done) {
    StartPut(core, std::move(space), std::move(pages), deadline, std::move(done));
  }
};

template <typename Kind>
struct LocalCall {
  ClientCore& core;
  const std::string space;
  const uint64_t lease;
  std::vector<typename Kind::Page> pages;
  typename Kind::Done done;
  const std::function<void(size_t, const typename Kind::Result&)> each;  // as GetBatch::each
  const Time deadline;
  Answers<typename Kind::Result> answers;  // told by the session's thread, one after the other
  std::atomic<size_t> open;
  std::shared_ptr<LocalSession> session;  // which must outlive its requests

  void Answer(size_t page, typename Kind::Result result) {
    if (each) each(page, result);
    answers.Set(page, std::move(result));
  }
  void StartStream(std::vector<typename Kind::Page> rest, typename Kind::Done rest_done) const {
    Kind::StartStream(core, space, lease, std::move(rest), deadline, std::move(rest_done));
  }
};

template <typename Kind>
void Take(const std::shared_ptr<LocalCall<Kind>>& call, size_t page,
          const absl::StatusOr<v1::LocalReply>& reply) {
  if (reply.ok()) {
    auto result = ResultOf(call->pages[page], *reply);
    if (result.has_value()) call->Answer(page, *std::move(result));
  }
  if (--call->open > 0) return;
  if (!call->answers.Missing().empty()) {
    call->core.executor.Run([call] {
      call->session.reset();
      GoOnOverStream(call);
    });
    return;
  }
  // At once, on the session's thread: another thread would be a wake-up more.
  call->done(call->answers.Take());
  call->core.executor.Run([call] {
    call->session.reset();  // which may be its end
    call->core.calls.RemoveBatch();
  });
}

template <typename Kind>
bool Start(ClientCore& core, const std::string& space, uint64_t lease,
           std::vector<typename Kind::Page>& pages, typename Kind::Done& done,
           std::function<void(size_t, const typename Kind::Result&)> each, Time deadline) {
  const std::shared_ptr<LocalSession> session = core.local.session();
  const std::string fingerprint = core.payloads.Find(space)->fingerprint;
  if (session == nullptr || pages.empty() || !core.options_status.ok()) return false;
  if (fingerprint.empty()) return false;
  std::vector<LocalSession::Page> requests;
  requests.reserve(pages.size());
  for (size_t i = 0; i < pages.size(); ++i) {
    auto range = session->RangeOf(Kind::Bytes(pages[i]));
    if (!range.has_value() || !Kind::CanGo(pages[i])) return false;
    requests.push_back({.request = Kind::Request(pages, i, *std::move(range)),
                        .bytes = Kind::Bytes(pages[i]),
                        .done = nullptr});
  }
  core.calls.AddBatch();
  const size_t n = pages.size();
  std::shared_ptr<LocalCall<Kind>> call(
      new LocalCall<Kind>{core, space, lease, std::move(pages), std::move(done), std::move(each),
                          deadline, Answers<typename Kind::Result>(n), n, session});
  for (size_t i = 0; i < n; ++i) {
    requests[i].done = [call, i](const absl::StatusOr<v1::LocalReply>& reply) {
      Take<Kind>(call, i, reply);
    };
  }
  session->Start(space, fingerprint, lease, std::move(requests), deadline);
  return true;
}

}  // namespace

void StartAnyGet(ClientCore& core, GetBatch batch, Time deadline) {
  if (core.gpu_thread.has_value() && std::ranges::any_of(batch.pages, &PageGet::on_gpu)) {
    return StartGpuGet(core, std::move(batch), deadline);
  }
  if (Start<GetKind>(core, batch.space, batch.lease, batch.pages, batch.done, batch.each,
                     deadline)) {
    return;
  }
  if (!StartDirectGet(core, batch, deadline)) StartGet(core, std::move(batch), deadline);
}

bool StartLocalPut(ClientCore& core, const std::string& space, std::vector<PagePut>& pages,
                   Client::PutDone& done) {
  return Start<PutKind>(core, space, 0, pages, done, nullptr, core.Deadline());
}

}  // namespace kvstow
