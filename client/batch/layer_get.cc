#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "client/batch/batches.h"
#include "client/connection/space_opening.h"
#include "client/payload/page_landing.h"
#include "kernels/page/page.h"

namespace kvstow {
namespace {

struct LayerCall {
  ClientCore& core;
  const KvSpec spec;
  const uint32_t layers_per_run;
  const uint32_t runs;
  std::vector<PageGet> pages;
  LayersDone on_layers;
  GetDone done;
  std::vector<size_t> asked = {};  // pages whose buffers could hold one

  // The thread that answers uses these, one at a time. The results of each run, in the order of
  // `asked`:
  std::vector<std::vector<GetResult>> came = {};
  std::vector<size_t> left = {};  // pages that a run waits for
  uint32_t whole_runs = 0;        // leading runs that wait for none

  // Only the executor's thread uses these.
  uint32_t delivered = 0;  // leading runs that were handed on
  std::vector<GetResult> results = {};
  std::vector<std::optional<Xxh3Stream>> digests = {};  // of exact pages, so far

  LayerRange Layers(uint32_t run) const {
    const uint32_t first = run * layers_per_run;
    return {first, std::min(layers_per_run, spec.layers - first)};
  }
  std::span<uint8_t> Part(size_t page, uint32_t run) const {
    const size_t layer = pages[page].out.size() / spec.layers;
    const LayerRange layers = Layers(run);
    return pages[page].out.subspan(layers.first * layer, layers.count * layer);
  }
};

// Makes the page a miss from now on, whatever comes.
void Miss(PageOutcome outcome, std::string message, GetResult& all) {
  all = {.outcome = outcome, .message = std::move(message)};
}

// Appends a part's list of kept tokens. A part without a list has all of its tokens.
void AddKept(std::vector<uint8_t> keep, size_t heads, GetResult& all, LayerRange layers) {
  const size_t layer = heads * all.tokens;
  if (keep.empty() && all.keep.empty()) return;
  if (all.keep.empty()) all.keep.resize(layers.first * layer, 1);
  if (keep.empty()) keep.resize(layers.count * layer, 1);
  all.keep.insert(all.keep.end(), keep.begin(), keep.end());
}

// Merges the result of one more run, whose bytes are in `out`, into the page's result so far.
void Merge(const LayerCall& call, uint32_t run, size_t wanted_bytes, GetResult part,
           GetResult& all) {
  if (run > 0 && all.outcome != PageOutcome::kHit) return;
  if (part.outcome != PageOutcome::kHit) {
    return Miss(part.outcome, std::move(part.message), all);
  }
  if (part.bytes != wanted_bytes) {
    return Miss(PageOutcome::kNotCompatible,
                absl::StrCat("layers of the page have ", part.bytes, " bytes, their part of `out` ",
                             wanted_bytes, ": it must have exactly the page's"),
                all);
  }
  if (run == 0) {
    all = std::move(part);
    return;
  }
  if (part.raw_digest != all.raw_digest || part.first_position != all.first_position) {
    return Miss(PageOutcome::kMiss, "the page was replaced while its layers came", all);
  }
  AddKept(std::move(part.keep), call.spec.kv_heads, all, call.Layers(run));
  all.bytes += part.bytes;
  all.tier = std::move(part.tier);
  all.exact &= part.exact;
  all.levels = std::min(all.levels, part.levels);
  all.levels_stored = std::max(all.levels_stored, part.levels_stored);
  all.kept_share = std::min(all.kept_share, part.kept_share);
  all.stored_bytes = part.stored_bytes;
  if (part.estimated_error > all.estimated_error) {
    all.estimated_error = part.estimated_error;
    all.recipe = std::move(part.recipe);
  }
}

// Only whole pages can be checked: the raw digest covers all of a page.
bool Checked(const PageGet& page, const GetResult& result) {
  return result.outcome == PageOutcome::kHit && result.exact && page.first_token == 0 &&
         page.token_count == 0;
}

// Hands on one more run. This and Finish run on the executor.
void Deliver(LayerCall& call) {
  const uint32_t run = call.delivered++;
  for (size_t i = 0; i < call.asked.size(); ++i) {
    const size_t page = call.asked[i];
    const size_t bytes = call.Part(page, run).size();
    Merge(call, run, bytes, std::move(call.came[run][i]), call.results[page]);
  }
  call.came[run].clear();
  if (call.on_layers) call.on_layers(call.Layers(run), call.results);
  // Digests take their time while the next run travels.
  for (const size_t page : call.asked) {
    if (!Checked(call.pages[page], call.results[page])) continue;
    if (!call.digests[page].has_value()) call.digests[page].emplace();
    call.digests[page]->Update(call.Part(page, run));
  }
}

void Finish(LayerCall& call) {
  while (call.delivered < call.runs) Deliver(call);
  for (const size_t page : call.asked) {
    GetResult& result = call.results[page];
    if (Checked(call.pages[page], result)) {
      CheckDigest(call.digests[page]->Finish(), result.raw_digest, result);
    }
    if (result.outcome != PageOutcome::kHit) result.bytes = 0;
  }
  call.done(std::move(call.results));
  call.core.calls.RemoveBatch();
}

// Takes one answer, on any thread.
void Take(const std::shared_ptr<LayerCall>& call, size_t request, const GetResult& result) {
  const size_t pages = call->asked.size(), run = request / pages;
  call->came[run][request % pages] = result;
  --call->left[run];
  for (; call->whole_runs < call->runs && call->left[call->whole_runs] == 0; ++call->whole_runs) {
    call->core.executor.Run([call] { Deliver(*call); });
  }
}

// Notes the pages that can be asked for, and answers the others.
void CheckBuffers(LayerCall& call, bool stale) {
  const size_t token = BytesPerToken(call.spec);
  for (size_t p = 0; p < call.pages.size(); ++p) {
    const size_t bytes = call.pages[p].out.size();
    if (stale || call.pages[p].on_gpu) {
      Miss(PageOutcome::kNotCompatible, stale ? kStaleSpace : kNotOnGpu, call.results[p]);
      continue;
    }
    if (bytes > 0 && bytes % token == 0) {
      call.asked.push_back(p);
      continue;
    }
    Miss(PageOutcome::kNotCompatible,
         absl::StrCat("`out` has ", bytes, " bytes, a token of this space ", token),
         call.results[p]);
  }
}

std::vector<PageGet> Requests(const LayerCall& call) {
  std::vector<PageGet> out;
  out.reserve(call.runs * call.asked.size());
  for (uint32_t run = 0; run < call.runs; ++run) {
    const LayerRange layers = call.Layers(run);
    for (const size_t page : call.asked) {
      PageGet& request = out.emplace_back(call.pages[page]);
      request.out = call.Part(page, run);
      request.first_layer = layers.first;
      request.layer_count = layers.count;
      request.again = request.again || run > 0;
    }
  }
  return out;
}

}  // namespace

void StartLayerGet(ClientCore& core, Transport& transport, const SpaceInfo& space, uint64_t lease,
                   std::vector<PageGet> pages, uint32_t layers_per_run, LayersDone on_layers,
                   GetDone done) {
  const uint32_t layers = std::max(space.spec.layers, 1u);
  if (layers_per_run == 0) layers_per_run = space.layers_per_run;
  layers_per_run = std::clamp(layers_per_run, 1u, layers);
  const uint32_t runs = (layers + layers_per_run - 1) / layers_per_run;
  const size_t n = pages.size();
  const auto call = std::make_shared<LayerCall>(LayerCall{.core = core,
                                                          .spec = space.spec,
                                                          .layers_per_run = layers_per_run,
                                                          .runs = runs,
                                                          .pages = std::move(pages),
                                                          .on_layers = std::move(on_layers),
                                                          .done = std::move(done)});
  call->results.resize(n);
  call->digests.resize(n);
  CheckBuffers(*call, IsStale(core, space));
  call->came.resize(runs, std::vector<GetResult>(call->asked.size()));
  call->left.resize(runs, call->asked.size());
  core.calls.AddBatch();
  auto batch = std::make_shared<GetBatch>(space.name, Requests(*call), core.Deadline(),
                                          [call](const std::vector<GetResult>&) {
                                            call->core.executor.Run([call] { Finish(*call); });
                                          });
  batch->lease = lease;
  batch->each = [call](size_t i, const GetResult& result) { Take(call, i, result); };
  StartBatch(core, transport, std::move(batch));
}

}  // namespace kvstow
