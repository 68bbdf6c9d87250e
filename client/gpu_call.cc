#include "client/gpu_call.h"

#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/shared_bytes.h"
#include "base/status_macros.h"
#include "client/direct_call.h"
#include "client/gpu_coder.h"
#include "client/local_call.h"
#include "client/local_pages.h"
#include "client/put_call.h"
#include "kernels/codec/decode_page.h"
#include "kernels/device/device_sharing.h"

namespace kvstow {
namespace {

constexpr Duration kAskAgain = std::chrono::microseconds(500);  // whether events have passed
// Host memory of a call, unless a page has more. So many at a time go over a stream before it is
// tried again whether shared memory has room.
constexpr size_t kMostScratch = 16 << 20;

// None: the CPU codes.
PageCoder CoderFor(ClientCore& core, const std::string& space, std::shared_ptr<HostCopies> copies) {
  if (!core.gpu_coder.has_value()) return nullptr;
  return core.gpu_coder->Coder(core.payloads.Find(space), std::move(copies));
}
PageDecoder DecoderFor(ClientCore& core, const std::string& space,
                       std::shared_ptr<HostCopies> copies) {
  if (!core.gpu_coder.has_value()) return nullptr;
  return core.gpu_coder->Decoder(core.payloads.Find(space), CalibrationsOf(core.options),
                                 std::move(copies));
}

// How Get and Put differ. `place` is where a page is that is on its way: in the shared memory of
// the GPU, or in the host's.
struct GetKind {
  using Page = PageGet;
  using Result = GetResult;
  using Done = Client::GetDone;
  static constexpr PageOutcome kNotDone = PageOutcome::kNotCompatible;
  static std::span<const uint8_t> Bytes(const PageGet& page) { return page.out; }
  static bool CanShare(const PageGet&) { return true; }
  static absl::Status BeforeShared(DeviceSharing&, const PageGet&, std::span<uint8_t>) {
    return absl::OkStatus();
  }
  static absl::Status AfterShared(DeviceSharing& gpu, const PageGet& page, const GetResult& result,
                                  std::span<const uint8_t> place) {
    return gpu.Copy(place.first(result.bytes), page.out.data());
  }
  static absl::Status BeforeHost(DeviceSharing&, const PageGet&, std::span<uint8_t>) {
    return absl::OkStatus();
  }
  static absl::Status AfterHost(DeviceSharing& gpu, const PageGet& page, const GetResult& result,
                                std::span<const uint8_t> place) {
    return gpu.ToDevice(place.first(result.bytes), page.out.data());
  }
  static bool IsDone(PageOutcome outcome) {
    return outcome == PageOutcome::kHit || outcome == PageOutcome::kMiss ||
           outcome == PageOutcome::kCorrupt || outcome == PageOutcome::kExpired;
  }
  static v1::LocalGetPage Request(std::span<const PageGet> pages, size_t i, v1::GpuRange range) {
    v1::LocalGetPage out = LocalRequestOf(pages, i);
    *out.mutable_gpu_to() = std::move(range);
    return out;
  }
  static PageGet OnHost(PageGet page, std::span<uint8_t> place) {
    page.out = place;
    page.on_gpu = false;
    return page;
  }
  static HostCopy CopyOf(const PageGet& page) { return {.to = page.out}; }
  static void StartHost(ClientCore& core, std::string space, uint64_t lease,
                        std::vector<PageGet> pages, Time deadline,
                        std::shared_ptr<HostCopies> copies, Done done) {
    GetBatch batch{std::move(space), lease, std::move(pages), std::move(done)};
    batch.decoder = DecoderFor(core, batch.space, std::move(copies));
    StartAnyGet(core, std::move(batch), deadline);
  }
};

struct PutKind {
  using Page = PagePut;
  using Result = PutResult;
  using Done = Client::PutDone;
  static constexpr PageOutcome kNotDone = PageOutcome::kRefused;
  static std::span<const uint8_t> Bytes(const PagePut& page) { return page.raw; }
  static bool CanShare(const PagePut& page) { return page.columns.empty(); }
  static absl::Status BeforeShared(DeviceSharing& gpu, const PagePut& page,
                                   std::span<uint8_t> place) {
    return gpu.Copy(page.raw, place.data());
  }
  static absl::Status AfterShared(DeviceSharing&, const PagePut&, const PutResult&,
                                  std::span<const uint8_t>) {
    return absl::OkStatus();
  }
  static absl::Status BeforeHost(DeviceSharing& gpu, const PagePut& page,
                                 std::span<uint8_t> place) {
    return gpu.ToHost(page.raw, place.data());
  }
  static absl::Status AfterHost(DeviceSharing&, const PagePut&, const PutResult&,
                                std::span<const uint8_t>) {
    return absl::OkStatus();
  }
  static bool IsDone(PageOutcome outcome) {
    return outcome == PageOutcome::kStored || outcome == PageOutcome::kAlreadyThere ||
           outcome == PageOutcome::kConflict;
  }
  static v1::LocalPutPage Request(std::span<const PagePut> pages, size_t i, v1::GpuRange range) {
    v1::LocalPutPage out = LocalRequestOf(pages, i);
    *out.mutable_gpu_from() = std::move(range);
    return out;
  }
  static PagePut OnHost(PagePut page, std::span<uint8_t> place) {
    page.raw = place;
    page.on_gpu = false;
    return page;
  }
  static HostCopy CopyOf(const PagePut& page) { return {.from = page.raw}; }
  static void StartHost(ClientCore& core, std::string space, uint64_t, std::vector<PagePut> pages,
                        Time deadline, std::shared_ptr<HostCopies> copies, Done done) {
    PageCoder coder = CoderFor(core, space, std::move(copies));
    if (StartDirectPut(core, space, pages, done, deadline, coder)) return;
    StartPut(core, std::move(space), std::move(pages), deadline, std::move(done), nullptr,
             std::move(coder));
  }
};

// All of it is the GPU thread's, and all functions run there.
template <typename Kind>
struct GpuCall {
  using Page = typename Kind::Page;
  using Result = typename Kind::Result;

  ClientCore& core;
  const std::string space;
  const uint64_t lease;
  const std::vector<Page> pages;
  typename Kind::Done done;
  const Time deadline;
  Answers<Result> answers;
  std::vector<bool> by_host;    // of each page: the session could not do it
  std::vector<bool> under_way;  // and where it is then
  std::vector<std::span<uint8_t>> places;
  size_t open = 0;  // pages that are under way, all of them the same way
  std::shared_ptr<LocalSession> session = nullptr;    // of those in shared memory
  ByteBlock scratch = {};                             // of those that go by the host
  std::shared_ptr<HostCopies> host_copies = nullptr;  // and what it holds

  DeviceSharing& gpu() const { return *core.options.gpu; }
  bool late() const { return Clock::Real().Now() >= deadline; }
  void Begin(size_t page, std::span<uint8_t> place) {
    under_way[page] = true;
    places[page] = place;
    ++open;
  }
  void End(size_t page) {
    under_way[page] = false;
    --open;
  }
  void Answer(size_t page, PageOutcome outcome, const absl::Status& why) {
    answers.Set(page, Result{.outcome = outcome, .message = std::string(why.message())});
  }
};

template <typename Kind>
using Shared = std::shared_ptr<GpuCall<Kind>>;

template <typename Kind>
void Next(const Shared<Kind>& call);

template <typename Kind>
void RunNext(const Shared<Kind>& call, Duration delay = Duration(0)) {
  call->core.gpu_thread->RunAfter(delay, [call] { Next<Kind>(call); });
}

// The pages that can go now. One whose event cannot be asked for has its answer.
template <typename Kind>
std::vector<size_t> ReadyPages(GpuCall<Kind>& call) {
  std::vector<size_t> ready;
  for (const size_t i : call.answers.Missing()) {
    if (call.under_way[i]) continue;
    const auto& page = call.pages[i];
    const auto passed = page.on_gpu ? call.gpu().Passed(page.ready) : true;
    if (!passed.ok()) call.Answer(i, Kind::kNotDone, passed.status());
    if (passed.ok() && *passed) ready.push_back(i);
  }
  return ready;
}

// What came of a page in shared memory. Without a good answer, it goes by the host.
template <typename Kind>
void TakeShared(const Shared<Kind>& call, size_t i, const absl::StatusOr<v1::LocalReply>& reply) {
  call->by_host[i] = true;
  call->End(i);
  if (reply.ok()) {
    auto result = ResultOf(call->pages[i], *reply);
    if (result.has_value() && Kind::IsDone(result->outcome) &&
        Kind::AfterShared(call->gpu(), call->pages[i], *result, call->places[i]).ok()) {
      call->answers.Set(i, *std::move(result));
    }
    // Without an answer the server may still be at work on it: it is lost with the session.
    call->session->staging()->Give(call->places[i]);
  }
  if (call->open == 0) call->session.reset();
  Next<Kind>(call);
}

// As many pages as the memory has room for, which are under way then.
template <typename Kind>
std::vector<LocalSession::Page> FillShared(const Shared<Kind>& call,
                                           std::span<const size_t> ready) {
  GpuStaging& staging = *call->session->staging();
  std::vector<LocalSession::Page> requests;
  for (const size_t i : ready) {
    const auto& page = call->pages[i];
    if (!page.on_gpu || call->by_host[i] || !Kind::CanShare(page)) continue;
    const auto place = staging.Take(Kind::Bytes(page).size());
    if (!place.has_value()) continue;
    if (!Kind::BeforeShared(call->gpu(), page, *place).ok()) {
      staging.Give(*place);
      call->by_host[i] = true;
      continue;
    }
    call->Begin(i, *place);
    requests.push_back({.request = Kind::Request(call->pages, i, staging.RangeOf(*place)),
                        .bytes = {},
                        .done = [call, i](absl::StatusOr<v1::LocalReply> reply) {
                          call->core.gpu_thread->Run([call, i, reply = std::move(reply)] {
                            TakeShared<Kind>(call, i, reply);
                          });
                        }});
  }
  return requests;
}

// Into the session that others of the call are in, if any.
template <typename Kind>
void StartShared(const Shared<Kind>& call, std::span<const size_t> ready) {
  ClientCore& core = call->core;
  const std::string fingerprint = core.payloads.Find(call->space)->fingerprint;
  if (core.options.gpu_shared_bytes == 0 || call->late() || fingerprint.empty()) return;
  const auto session = core.local.OpenSession([&core] { return AskForLocal(core); });
  if (session == nullptr || session->staging() == nullptr) return;
  if (call->open > 0 && session != call->session) return;  // those will hear that theirs ended
  call->session = session;
  auto requests = FillShared<Kind>(call, ready);
  if (call->open == 0) call->session.reset();
  if (requests.empty()) return;
  session->Start(call->space, fingerprint, call->lease, std::move(requests), call->deadline);
}

template <typename Kind>
void TakeHost(const Shared<Kind>& call, std::span<const size_t> asked,
              std::vector<typename Kind::Result> results) {
  for (size_t n = 0; n < asked.size(); ++n) {
    const size_t i = asked[n];
    const auto& page = call->pages[i];
    call->End(i);
    absl::Status copied;
    const auto of_gpu = call->host_copies->find(call->places[i].data());
    const bool there = of_gpu != call->host_copies->end() && of_gpu->second.came;
    if (page.on_gpu && !there && Kind::IsDone(results[n].outcome)) {
      copied = Kind::AfterHost(call->gpu(), page, results[n], call->places[i]);
    }
    if (copied.ok()) {
      call->answers.Set(i, std::move(results[n]));
    } else {
      call->Answer(i, PageOutcome::kUnavailable, copied);
    }
  }
  call->scratch = {};
  Next<Kind>(call);
}

// The first pages, as many as scratch memory is for; pages of the host have their own.
template <typename Kind>
void StartHost(const Shared<Kind>& call, std::span<const size_t> ready) {
  size_t bytes = 0, n = 0;
  const auto needs = [&](size_t i) {
    return call->pages[i].on_gpu ? Kind::Bytes(call->pages[i]).size() : 0;
  };
  for (; n < ready.size() && (n == 0 || bytes + needs(ready[n]) <= kMostScratch); ++n) {
    bytes += needs(ready[n]);
  }
  call->scratch = ByteBlock(bytes);
  std::vector<typename Kind::Page> pages;
  std::vector<size_t> asked;
  call->host_copies = std::make_shared<HostCopies>();
  std::span<uint8_t> left = call->scratch.span();
  for (const size_t i : ready.first(n)) {
    const auto& page = call->pages[i];
    const std::span<uint8_t> place = left.first(needs(i));
    left = left.subspan(place.size());
    const absl::Status copied =
        page.on_gpu ? Kind::BeforeHost(call->gpu(), page, place) : absl::OkStatus();
    if (!copied.ok()) {
      call->Answer(i, PageOutcome::kUnavailable, copied);
      continue;
    }
    call->Begin(i, place);
    asked.push_back(i);
    if (!place.empty()) (*call->host_copies)[place.data()] = Kind::CopyOf(page);
    pages.push_back(page.on_gpu ? Kind::OnHost(page, place) : page);
  }
  if (pages.empty()) return RunNext<Kind>(call);
  Kind::StartHost(
      call->core, call->space, call->lease, std::move(pages), call->deadline, call->host_copies,
      [call, asked = std::move(asked)](std::vector<typename Kind::Result> results) {
        call->core.gpu_thread->Run([call, asked, results = std::move(results)]() mutable {
          TakeHost<Kind>(call, asked, std::move(results));
        });
      });
}

// More pages, or the end. What finds no room in shared memory waits for what the call has there,
// and goes by the host when that is nothing.
template <typename Kind>
void Next(const Shared<Kind>& call) {
  const std::vector<size_t> ready = ReadyPages(*call);
  if (!ready.empty()) StartShared<Kind>(call, ready);
  if (call->open > 0) return;
  if (!ready.empty()) return StartHost<Kind>(call, ready);
  const std::vector<size_t> waiting = call->answers.Missing();
  if (!waiting.empty() && !call->late() && !call->core.calls.closed()) {
    return RunNext<Kind>(call, kAskAgain);
  }
  for (const size_t i : waiting) {
    call->Answer(i, PageOutcome::kUnavailable,
                 absl::DeadlineExceededError("the event before the page did not pass in time"));
  }
  call->done(call->answers.Take());
  call->core.calls.RemoveBatch();
}

template <typename Kind>
void Start(ClientCore& core, std::string space, uint64_t lease,
           std::vector<typename Kind::Page> pages, Time deadline, typename Kind::Done done) {
  core.calls.AddBatch();
  const size_t n = pages.size();
  RunNext<Kind>(
      std::make_shared<GpuCall<Kind>>(GpuCall<Kind>{.core = core,
                                                    .space = std::move(space),
                                                    .lease = lease,
                                                    .pages = std::move(pages),
                                                    .done = std::move(done),
                                                    .deadline = deadline,
                                                    .answers = Answers<typename Kind::Result>(n),
                                                    .by_host = std::vector<bool>(n),
                                                    .under_way = std::vector<bool>(n),
                                                    .places = std::vector<std::span<uint8_t>>(n)}));
}

}  // namespace

void StartGpuGet(ClientCore& core, GetBatch batch, Time deadline) {
  Start<GetKind>(core, std::move(batch.space), batch.lease, std::move(batch.pages), deadline,
                 std::move(batch.done));
}

void StartGpuPut(ClientCore& core, std::string space, std::vector<PagePut> pages, Time deadline,
                 Client::PutDone done) {
  Start<PutKind>(core, std::move(space), 0, std::move(pages), deadline, std::move(done));
}

}  // namespace kvstow
