#include "client/progressive_call.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "client/get_call.h"
#include "client/local_call.h"

namespace kvstow {
namespace {

struct ProgressiveCall {
  ClientCore& core;
  const std::string space;
  const uint64_t lease;
  const Time deadline;  // of both Gets
  const std::vector<PageGet> pages;
  Client::BaseDone on_base;
  Client::GetDone done;

  // Of the executor.
  std::vector<GetResult> results = {};
  std::vector<size_t> refined = {};  // pages that are asked for a second time
};

// Bounds say what the whole is worth: a base level comes whatever they are.
PageGet BaseOf(PageGet page) {
  page.max_levels = 1;
  page.min_levels = 0;
  page.max_error = std::numeric_limits<double>::infinity();
  return page;
}

// More is stored than came, or what came is not enough, which is the server's to say.
bool WantsMore(const PageGet& asked, const GetResult& base) {
  if (base.outcome != PageOutcome::kHit) return false;
  const uint32_t most =
      asked.max_levels == 0 ? base.levels_stored : std::min(asked.max_levels, base.levels_stored);
  return base.levels < most || base.levels < asked.min_levels ||
         !(base.estimated_error <= asked.max_error);
}

// On the executor, as is what follows.
void Finish(ProgressiveCall& call, std::vector<GetResult> refined) {
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
  if (more.empty()) return Finish(*call, {});
  StartAnyGet(call->core,
              {.space = call->space,
               .lease = call->lease,
               .pages = std::move(more),
               .done =
                   [call](std::vector<GetResult> refined) {
                     call->core.executor.Run([call, refined = std::move(refined)]() mutable {
                       Finish(*call, std::move(refined));
                     });
                   }},
              call->deadline);
}

}  // namespace

void StartProgressiveGet(ClientCore& core, std::string space, uint64_t lease,
                         std::vector<PageGet> pages, Client::BaseDone on_base,
                         Client::GetDone done) {
  std::vector<PageGet> bases;
  for (const PageGet& page : pages) bases.push_back(BaseOf(page));
  const auto call = std::make_shared<ProgressiveCall>(
      ProgressiveCall{core, std::move(space), lease, core.Deadline(), std::move(pages),
                      std::move(on_base), std::move(done)});
  core.calls.AddBatch();
  StartAnyGet(core,
              {.space = call->space,
               .lease = lease,
               .pages = std::move(bases),
               .done =
                   [call](std::vector<GetResult> base) {
                     call->core.executor.Run([call, base = std::move(base)]() mutable {
                       Refine(call, std::move(base));
                     });
                   }},
              call->deadline);
}

}  // namespace kvstow
