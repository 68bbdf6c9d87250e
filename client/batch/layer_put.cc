#include <algorithm>
#include <iterator>
#include <utility>

#include "client/batch/batches.h"
#include "client/connection/space_opening.h"

namespace kvstow {
namespace {

constexpr size_t kStreams = 8;  // Client::PutLayers says so too

class FillingPut final : public LayerPut {
 public:
  explicit FillingPut(std::shared_ptr<PutProgress> progress) : progress_(std::move(progress)) {}
  ~FillingPut() override { progress_->GiveUp(); }
  void Filled(uint32_t layers) override { progress_->Fill(layers); }

 private:
  const std::shared_ptr<PutProgress> progress_;
};

// The results of all streams of a layer put. Only the executor's thread uses them.
struct AllStreams {
  std::vector<PutResult> results;
  size_t open;
  PutDone done;
};

void RefuseColumns(PutBatch& batch) {
  for (size_t i = 0; i < batch.pages.size(); ++i) {
    if (batch.pages[i].columns.empty()) continue;
    batch.Answer(i, PageOutcome::kRefused, "columns: report attention once the page is stored");
  }
}

}  // namespace

// A stream takes one page after the other, so up to kStreams pages get a stream each.
std::unique_ptr<LayerPut> StartLayerPut(ClientCore& core, Transport& transport,
                                        const SpaceInfo& space, std::vector<PagePut> pages,
                                        PutDone done) {
  const size_t n = pages.size(), streams = std::clamp<size_t>(n, 1, kStreams);
  auto progress = std::make_shared<PutProgress>(std::max(space.spec.layers, 1u));
  auto put = std::make_unique<FillingPut>(progress);
  if (IsStale(core, space)) {
    core.calls.AddBatch();
    core.executor.Run([&core, n, done = std::move(done)] {
      done(std::vector<PutResult>(
          n, {.outcome = PageOutcome::kNotCompatible, .message = kStaleSpace}));
      core.calls.RemoveBatch();
    });
    return put;
  }
  const auto all =
      std::make_shared<AllStreams>(AllStreams{std::vector<PutResult>(n), streams, std::move(done)});
  const Time deadline = core.Deadline();
  for (size_t s = 0; s < streams; ++s) {
    const size_t first = n * s / streams, end = n * (s + 1) / streams;
    std::vector<PagePut> some(std::make_move_iterator(pages.begin() + first),
                              std::make_move_iterator(pages.begin() + end));
    auto batch = std::make_shared<PutBatch>(
        space.name, std::move(some), deadline, [all, first](std::vector<PutResult> results) {
          std::move(results.begin(), results.end(), all->results.begin() + first);
          if (--all->open == 0) all->done(std::move(all->results));
        });
    batch->progress = progress;
    RefuseColumns(*batch);
    StartBatch(core, transport, std::move(batch));
  }
  return put;
}

}  // namespace kvstow
