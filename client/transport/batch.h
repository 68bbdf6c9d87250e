// A Get or a Put of some pages of one space, on its way through the transports (transport.h).
//
// Not thread-safe: one transport has the batch at a time, and uses it on one thread at a time.
#ifndef KVSTOW_CLIENT_TRANSPORT_BATCH_H_
#define KVSTOW_CLIENT_TRANSPORT_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "client/pages.h"
#include "client/payload/space_payloads.h"
#include "client/transport/put_progress.h"
#include "kernels/codec/decode_page.h"

namespace kvstow {

// Says why a call does not take a page on a GPU: nothing but GpuTransport may touch its bytes.
inline constexpr char kNotOnGpu[] =
    "on_gpu: only GetAsync, PutAsync and GetProgressiveAsync take pages on a GPU, of a client with "
    "ClientOptions::gpu";

template <typename PageType, typename ResultType>
class Batch {
 public:
  using Page = PageType;
  using Result = ResultType;
  using Done = std::function<void(std::vector<Result>)>;

  Batch(std::string name, std::vector<Page> of, Time until, Done then)
      : space(std::move(name)),
        pages(std::move(of)),
        deadline(until),
        done_(std::move(then)),
        results_(pages.size()),
        answered_(pages.size()),
        left_(pages.size()) {}

  const std::string space;
  const std::vector<Page> pages;
  const Time deadline;
  uint64_t lease = 0;                     // of a Get
  std::shared_ptr<SpacePayload> payload;  // what the client knows of the space; StartBatch sets it
  // If not null, gets each page that has its result, before the batch ends, on whatever thread, one
  // call at a time. Over one transport, pages come in order.
  std::function<void(size_t page, const Result&)> each;

  // Gives a page its result, once.
  void Answer(size_t page, Result result) {
    if (each) each(page, result);
    results_[page] = std::move(result);
    answered_[page] = true;
    --left_;
  }
  void Answer(size_t page, PageOutcome outcome, absl::string_view message) {
    Answer(page, Result{.outcome = outcome, .message = std::string(message)});
  }
  bool Has(size_t page) const { return answered_[page]; }
  bool AllAnswered() const { return left_ == 0; }
  std::vector<size_t> Missing() const {
    std::vector<size_t> out;
    for (size_t i = 0; i < pages.size(); ++i) {
      if (!answered_[i]) out.push_back(i);
    }
    return out;
  }
  // Hands the results to the caller: once, after the last transport. Everything that the batch
  // shares with the client goes.
  void End() {
    std::exchange(done_, nullptr)(std::move(results_));
    payload.reset();
  }

 private:
  Done done_;
  std::vector<Result> results_;
  std::vector<bool> answered_;
  size_t left_;
};

struct GetBatch : Batch<PageGet, GetResult> {
  using Batch::Batch;
  bool summaries = false;  // of keys come instead of pages
  // The client checks digests, so the server need not. Once a page came damaged, the server does.
  bool checked = true;
  PageDecoder decoder;  // of pages that come encoded; null: the CPU decodes
};

struct PutBatch : Batch<PagePut, PutResult> {
  using Batch::Batch;
  std::shared_ptr<PutProgress> progress;  // pages go raw, as far as they are filled; null: whole
  PageCoder coder;                        // of pages that go encoded; null: the space's codec
};

// Gives each page that has no answer the outcome of a call that failed with `status`.
void AnswerMissing(GetBatch& batch, const absl::Status& status);
void AnswerMissing(PutBatch& batch, const absl::Status& status);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_TRANSPORT_BATCH_H_
