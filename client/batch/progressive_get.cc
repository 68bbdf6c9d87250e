#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "client/batch/batches.h"

namespace kvstow {
namespace {

struct ProgressiveCall {
  ClientCore& core;
  Transport& transport;
  const std::string space;
  const uint64_t lease;
  const Time deadline;  // of both Gets
  const std::vector<PageGet> pages;
  BaseDone on_base;
  GetDone done;

  // Only the executor's thread uses these.
  std::vector<GetResult> results = {};
  std::vector<size_t> refined = {};  // pages that are asked for a second time
};

// The bounds are for the whole page: a base level comes whatever they are.
PageGet BaseOf(PageGet page) {
  page.max_levels = 1;
  page.min_levels = 0;
  page.max_error = std::numeric_limits<double>::infinity();
  return page;
}

// Returns whether more levels are stored than came, or what came misses a bound: the server then
// says so.
bool WantsMore(const PageGet& asked, const GetResult& base) {
  if (base.outcome != PageOutcome::kHit) return false;
  const uint32_t most =
      asked.max_levels == 0 ? base.levels_stored : std::min(asked.max_levels, base.levels_stored);
  return base.levels < most || base.levels < asked.min_levels ||
         !(base.estimated_error <= asked.max_error);
}

// Starts one of the two Gets. `then` takes the results, on the executor.
using Then = void (*)(const std::shared_ptr<ProgressiveCall>& call, std::vector<GetResult> came);
void StartPart(const std::shared_ptr<ProgressiveCall>& call, std::vector<PageGet> pages,
               Then then) {
  auto batch = std::make_shared<GetBatch>(
      call->space, std::move(pages), call->deadline, [call, then](std::vector<GetResult> came) {
        call->core.executor.Run(
            [call, then, came = std::move(came)]() mutable { then(call, std::move(came)); });
      });
  batch->lease = call->lease;
  StartBatch(call->core, call->transport, std::move(batch));
}

void Finish(const std::shared_ptr<ProgressiveCall>& shared, std::vector<GetResult> refined) {
  ProgressiveCall& call = *shared;
  for (size_t i = 0; i < refined.size(); ++i) {
    GetResult& result = call.results[call.refined[i]];
    const bool replaced = refined[i].outcome == PageOutcome::kHit &&
                          (refined[i].raw_digest != result.raw_digest ||
                           refined[i].first_position != result.first_position);
    result = std::move(refined[i]);
    if (replaced) {
      result = {.outcome = PageOutcome::kMiss,
                .message = "the page was replaced after its base level had come"};
    }
  }
  call.done(std::move(call.results));
  call.core.calls.RemoveBatch();
}

void Refine(const std::shared_ptr<ProgressiveCall>& call, std::vector<GetResult> base) {
  call->results = std::move(base);
  if (call->on_base) call->on_base(call->results);
  std::vector<PageGet> more;
  for (size_t p = 0; p < call->pages.size(); ++p) {
    if (!WantsMore(call->pages[p], call->results[p])) continue;
    call->refined.push_back(p);
    more.emplace_back(call->pages[p]).again = true;
  }
  if (more.empty()) return Finish(call, {});
  StartPart(call, std::move(more), Finish);
}

}  // namespace

void StartProgressiveGet(ClientCore& core, Transport& transport, std::string space, uint64_t lease,
                         std::vector<PageGet> pages, BaseDone on_base, GetDone done) {
  std::vector<PageGet> bases;
  for (const PageGet& page : pages) bases.push_back(BaseOf(page));
  const auto call = std::make_shared<ProgressiveCall>(
      ProgressiveCall{core, transport, std::move(space), lease, core.Deadline(), std::move(pages),
                      std::move(on_base), std::move(done)});
  core.calls.AddBatch();
  StartPart(call, std::move(bases), Refine);
}

}  // namespace kvstow
