#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/shared_bytes.h"
#include "client/connection/executor.h"
#include "client/transport/gpu_coder.h"
#include "client/transport/local_messages.h"
#include "client/transport/transports.h"
#include "kernels/device/device_sharing.h"

namespace kvstow {
namespace {

// The parts that the calls of the transport share.
struct Parts {
  ClientCore& core;
  const std::unique_ptr<Transport> host;  // for pages in the host's memory
  std::optional<GpuCoder> coder;          // none without ClientOptions::gpu_device
  Executor thread = {};                   // copies pages, and joins before the others go
};

// Between two questions whether events have passed: twice as long each time.
constexpr Duration kAskSoon = std::chrono::microseconds(25);
constexpr Duration kAskLater = std::chrono::microseconds(800);
// Host memory of a call, unless one page has more. After so many bytes, the call tries again
// whether shared memory has room.
constexpr size_t kMostScratch = 16 << 20;

// These functions are the difference between Get and Put. `place` holds a page on its way: in the
// shared memory of the GPU, or in the host's.

std::span<const uint8_t> BytesOf(const PageGet& page) { return page.out; }
std::span<const uint8_t> BytesOf(const PagePut& page) { return page.raw; }
PageOutcome NotDone(const GetBatch&) { return PageOutcome::kNotCompatible; }
PageOutcome NotDone(const PutBatch&) { return PageOutcome::kRefused; }
bool CanShare(const PageGet&) { return true; }
bool CanShare(const PagePut& page) { return page.columns.empty(); }

absl::Status IntoShared(DeviceSharing&, const PageGet&, std::span<uint8_t>) {
  return absl::OkStatus();
}
absl::Status IntoShared(DeviceSharing& gpu, const PagePut& page, std::span<uint8_t> place) {
  return gpu.Copy(page.raw, place.data());
}
absl::Status OutOfShared(DeviceSharing& gpu, const PageGet& page, const GetResult& result,
                         std::span<const uint8_t> place) {
  return gpu.Copy(place.first(result.bytes), page.out.data());
}
absl::Status OutOfShared(DeviceSharing&, const PagePut&, const PutResult&,
                         std::span<const uint8_t>) {
  return absl::OkStatus();
}
absl::Status IntoHost(DeviceSharing&, const PageGet&, std::span<uint8_t>) {
  return absl::OkStatus();
}
absl::Status IntoHost(DeviceSharing& gpu, const PagePut& page, std::span<uint8_t> place) {
  return gpu.ToHost(page.raw, place.data());
}
absl::Status OutOfHost(DeviceSharing& gpu, const PageGet& page, const GetResult& result,
                       std::span<const uint8_t> place) {
  return gpu.ToDevice(place.first(result.bytes), page.out.data());
}
absl::Status OutOfHost(DeviceSharing&, const PagePut&, const PutResult&, std::span<const uint8_t>) {
  return absl::OkStatus();
}

// With several servers a lease may be another one's: the host's way sees to that.
bool IsDone(const ClientCore& core, const GetResult& result) {
  return result.outcome == PageOutcome::kHit || result.outcome == PageOutcome::kMiss ||
         result.outcome == PageOutcome::kCorrupt ||
         (result.outcome == PageOutcome::kExpired && !core.nodes.several());
}
bool IsDone(const ClientCore&, const PutResult& result) {
  return result.outcome == PageOutcome::kStored || result.outcome == PageOutcome::kAlreadyThere ||
         result.outcome == PageOutcome::kConflict;
}

v1::LocalGetPage RequestOf(const GetBatch& batch, size_t page, v1::GpuRange range) {
  v1::LocalGetPage out = LocalRequestOf(batch, page);
  *out.mutable_gpu_to() = std::move(range);
  return out;
}
v1::LocalPutPage RequestOf(const PutBatch& batch, size_t page, v1::GpuRange range) {
  v1::LocalPutPage out = LocalRequestOf(batch, page);
  *out.mutable_gpu_from() = std::move(range);
  return out;
}

PageGet OnHost(PageGet page, std::span<uint8_t> place) {
  page.out = place;
  page.on_gpu = false;
  return page;
}
PagePut OnHost(PagePut page, std::span<uint8_t> place) {
  page.raw = place;
  page.on_gpu = false;
  return page;
}
HostCopy CopyOf(const PageGet& page) { return {.to = page.out}; }
HostCopy CopyOf(const PagePut& page) { return {.from = page.raw}; }

void CodeOnGpu(Parts& parts, const GetBatch& from, GetBatch& batch,
               std::shared_ptr<HostCopies> copies) {
  batch.lease = from.lease;
  batch.checked = from.checked;
  if (!parts.coder.has_value()) return;
  batch.decoder = parts.coder->Decoder(parts.core.payloads.Find(from.space),
                                       CalibrationsOf(parts.core.options), std::move(copies));
}
void CodeOnGpu(Parts& parts, const PutBatch& from, PutBatch& batch,
               std::shared_ptr<HostCopies> copies) {
  if (!parts.coder.has_value()) return;
  batch.coder = parts.coder->Coder(parts.core.payloads.Find(from.space), std::move(copies));
}

// All of it belongs to the GPU thread, and all functions run there.
template <typename Batch>
struct GpuCall {
  Parts& parts;
  const std::shared_ptr<Batch> batch;
  const Transport::Next next;
  std::vector<bool> by_host;    // of each page: the session could not do it
  std::vector<bool> under_way;  // its place is in `places`
  std::vector<std::span<uint8_t>> places;
  size_t open = 0;  // pages that are under way, all of them the same way
  std::shared_ptr<LocalSession> session = nullptr;    // of those in shared memory
  ByteBlock scratch = {};                             // of those that go by the host
  std::shared_ptr<HostCopies> host_copies = nullptr;  // and what it holds
  Duration ask_again = kAskSoon;

  DeviceSharing& gpu() const { return *parts.core.options.gpu; }
  bool late() const { return Clock::Real().Now() >= batch->deadline; }
  void Begin(size_t page, std::span<uint8_t> place) {
    under_way[page] = true;
    places[page] = place;
    ++open;
  }
  void End(size_t page) {
    under_way[page] = false;
    --open;
  }
};

template <typename Batch>
using Shared = std::shared_ptr<GpuCall<Batch>>;

template <typename Batch>
void Next(const Shared<Batch>& call);

template <typename Batch>
void RunNext(const Shared<Batch>& call, Duration delay = Duration(0)) {
  call->parts.thread.RunAfter(delay, [call] { Next(call); });
}

// Returns the pages that can go now. Answers a page whose event fails.
template <typename Batch>
std::vector<size_t> ReadyPages(GpuCall<Batch>& call) {
  std::vector<size_t> ready;
  for (const size_t i : call.batch->Missing()) {
    if (call.under_way[i]) continue;
    const auto& page = call.batch->pages[i];
    const auto passed = page.on_gpu ? call.gpu().Passed(page.ready) : true;
    if (!passed.ok()) call.batch->Answer(i, NotDone(*call.batch), passed.status().message());
    if (passed.ok() && *passed) ready.push_back(i);
  }
  return ready;
}

// Takes the answer for a page in shared memory. Without a good answer, the page goes by the host.
template <typename Batch>
void TakeShared(const Shared<Batch>& call, size_t i, const absl::StatusOr<v1::LocalReply>& reply) {
  const auto& page = call->batch->pages[i];
  call->by_host[i] = true;
  call->End(i);
  if (reply.ok()) {
    auto result = ResultOf(page, *reply);
    if (result.has_value() && IsDone(call->parts.core, *result) &&
        OutOfShared(call->gpu(), page, *result, call->places[i]).ok()) {
      call->batch->Answer(i, *std::move(result));
    }
    // Without an answer the server may still use the place: it is lost with the session.
    call->session->staging()->Give(call->places[i]);
  }
  if (call->open == 0) call->session.reset();
  Next(call);
}

// Puts as many pages under way as the shared memory has room for, and returns their requests.
template <typename Batch>
std::vector<LocalSession::Page> FillShared(const Shared<Batch>& call,
                                           std::span<const size_t> ready) {
  GpuStaging& staging = *call->session->staging();
  std::vector<LocalSession::Page> requests;
  for (const size_t i : ready) {
    const auto& page = call->batch->pages[i];
    if (!page.on_gpu || call->by_host[i] || !CanShare(page)) continue;
    const auto place = staging.Take(BytesOf(page).size());
    if (!place.has_value()) continue;
    if (!IntoShared(call->gpu(), page, *place).ok()) {
      staging.Give(*place);
      call->by_host[i] = true;
      continue;
    }
    call->Begin(i, *place);
    requests.push_back({.request = RequestOf(*call->batch, i, staging.RangeOf(*place)),
                        .bytes = {},
                        .done = [call, i](absl::StatusOr<v1::LocalReply> reply) {
                          call->parts.thread.Run(
                              [call, i, reply = std::move(reply)] { TakeShared(call, i, reply); });
                        }});
  }
  return requests;
}

// Starts pages through shared memory. All pages of a call are in one session.
template <typename Batch>
void StartShared(const Shared<Batch>& call, std::span<const size_t> ready) {
  ClientCore& core = call->parts.core;
  const Batch& batch = *call->batch;
  const std::string fingerprint = core.payloads.Find(batch.space)->fingerprint;
  if (core.options.gpu_shared_bytes == 0 || call->late() || fingerprint.empty()) return;
  Node& node = core.nodes.current();
  const auto session = node.local.OpenSession();
  if (session == nullptr || session->staging() == nullptr) return;
  if (call->open > 0 && session != call->session) return;  // the others will hear that theirs ended
  call->session = session;
  auto requests = FillShared(call, ready);
  if (call->open == 0) call->session.reset();
  if (requests.empty()) return;
  session->Start(batch.space, fingerprint, core.nodes.LeaseAt(node, batch.lease),
                 std::move(requests), batch.deadline);
}

template <typename Batch>
void TakeHost(const Shared<Batch>& call, std::span<const size_t> asked,
              std::vector<typename Batch::Result> results) {
  for (size_t n = 0; n < asked.size(); ++n) {
    const size_t i = asked[n];
    const auto& page = call->batch->pages[i];
    call->End(i);
    absl::Status copied;
    const auto of_gpu = call->host_copies->find(call->places[i].data());
    const bool there = of_gpu != call->host_copies->end() && of_gpu->second.came;
    if (page.on_gpu && !there && IsDone(call->parts.core, results[n])) {
      copied = OutOfHost(call->gpu(), page, results[n], call->places[i]);
    }
    if (copied.ok()) {
      call->batch->Answer(i, std::move(results[n]));
    } else {
      call->batch->Answer(i, PageOutcome::kUnavailable, copied.message());
    }
  }
  call->scratch = {};
  Next(call);
}

// Starts the first pages by the host, as many as the scratch memory holds. Pages of the host need
// none.
template <typename Batch>
void StartHost(const Shared<Batch>& call, std::span<const size_t> ready) {
  const Batch& batch = *call->batch;
  size_t bytes = 0, n = 0;
  const auto needs = [&](size_t i) {
    return batch.pages[i].on_gpu ? BytesOf(batch.pages[i]).size() : 0;
  };
  for (; n < ready.size() && (n == 0 || bytes + needs(ready[n]) <= kMostScratch); ++n) {
    bytes += needs(ready[n]);
  }
  call->scratch = ByteBlock(bytes);
  std::vector<typename Batch::Page> pages;
  std::vector<size_t> asked;
  call->host_copies = std::make_shared<HostCopies>();
  std::span<uint8_t> left = call->scratch.span();
  for (const size_t i : ready.first(n)) {
    const auto& page = batch.pages[i];
    const std::span<uint8_t> place = left.first(needs(i));
    left = left.subspan(place.size());
    const absl::Status copied = page.on_gpu ? IntoHost(call->gpu(), page, place) : absl::OkStatus();
    if (!copied.ok()) {
      call->batch->Answer(i, PageOutcome::kUnavailable, copied.message());
      continue;
    }
    call->Begin(i, place);
    asked.push_back(i);
    if (!place.empty()) (*call->host_copies)[place.data()] = CopyOf(page);
    pages.push_back(page.on_gpu ? OnHost(page, place) : page);
  }
  if (pages.empty()) return RunNext(call);
  auto of_host = std::make_shared<Batch>(
      batch.space, std::move(pages), batch.deadline,
      [call, asked = std::move(asked)](std::vector<typename Batch::Result> results) {
        call->parts.thread.Run([call, asked, results = std::move(results)]() mutable {
          TakeHost(call, asked, std::move(results));
        });
      });
  CodeOnGpu(call->parts, batch, *of_host, call->host_copies);
  StartBatch(call->parts.core, *call->parts.host, std::move(of_host));
}

// Starts more pages, or ends the call. A page that finds no room in shared memory waits for the
// call's own pages there; when there are none, it goes by the host.
template <typename Batch>
void Next(const Shared<Batch>& call) {
  const std::vector<size_t> ready = ReadyPages(*call);
  if (!ready.empty()) {
    call->ask_again = kAskSoon;
    StartShared(call, ready);
  }
  if (call->open > 0) return;
  if (!ready.empty()) return StartHost(call, ready);
  const std::vector<size_t> waiting = call->batch->Missing();
  if (!waiting.empty() && !call->late() && !call->parts.core.calls.closed()) {
    const Duration wait = call->ask_again;
    call->ask_again = std::min(2 * wait, kAskLater);
    return RunNext(call, wait);
  }
  for (const size_t i : waiting) {
    call->batch->Answer(i, PageOutcome::kUnavailable,
                        "the event before the page did not pass in time");
  }
  call->next();
}

template <typename Batch>
void Start(Parts& parts, std::shared_ptr<Batch> batch, Transport::Next next) {
  const size_t n = batch->pages.size();
  RunNext(std::make_shared<GpuCall<Batch>>(
      GpuCall<Batch>{.parts = parts,
                     .batch = std::move(batch),
                     .next = std::move(next),
                     .by_host = std::vector<bool>(n),
                     .under_way = std::vector<bool>(n),
                     .places = std::vector<std::span<uint8_t>>(n)}));
}

template <typename Batch>
bool AnyOnGpu(const Batch& batch) {
  return std::ranges::any_of(batch.pages, [](const auto& page) { return page.on_gpu; });
}

class GpuTransport final : public Transport {
 public:
  GpuTransport(ClientCore& core, std::unique_ptr<Transport> host)
      : parts_{.core = core, .host = std::move(host)} {
    const ClientOptions& options = core.options;
    if (options.gpu_device != nullptr) parts_.coder.emplace(options.gpu_device, options.gpu);
  }

  void Get(std::shared_ptr<GetBatch> batch, Next next) override {
    const bool ours = !batch->summaries && AnyOnGpu(*batch);
    if (!ours) return parts_.host->Get(std::move(batch), std::move(next));
    Start(parts_, std::move(batch), std::move(next));
  }
  void Put(std::shared_ptr<PutBatch> batch, Next next) override {
    const bool ours = batch->progress == nullptr && AnyOnGpu(*batch);
    if (!ours) return parts_.host->Put(std::move(batch), std::move(next));
    Start(parts_, std::move(batch), std::move(next));
  }

 private:
  Parts parts_;
};

}  // namespace

std::unique_ptr<Transport> MakeGpuTransport(ClientCore& core, std::unique_ptr<Transport> host) {
  return std::make_unique<GpuTransport>(core, std::move(host));
}

}  // namespace kvstow
