#include "tests/kernels/device/emulated_scorer.h"

#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "kernels/cuda/score/score_steps.cuh"
#include "kernels/device/host_buffer.h"
#include "kernels/device/score_batch.h"

namespace kvstow::testing {
namespace {

using gpu::Piece;
using gpu::ScoreBatch;
using gpu::ScoreLaunch;

bool IsHosts(const DeviceBuffer& buffer) {
  return dynamic_cast<const HostBuffer*>(&buffer) != nullptr;
}

// The scratch memory of a batch begins with whatever was there, but for its input.
class Scratch {
 public:
  explicit Scratch(const ScoreBatch& batch) : memory_(batch.scratch_bytes()) {
    uint8_t* const begin = memory_.Fresh();
    std::ranges::copy(batch.input(), begin);
    std::ranges::copy(batch.given(), begin + batch.given_at());
    data_ = begin;
  }
  uint8_t* data() { return data_; }
  std::span<const uint8_t> Read(const Piece& piece) const {
    return {data_ + piece.at, piece.bytes};
  }

 private:
  Shared memory_;
  uint8_t* data_;
};

class EmulatedScorer final : public DeviceScorer {
 public:
  EmulatedScorer(gpu::ScorePlan plan, ThreadOrder order) : plan_(std::move(plan)), order_(order) {}

  absl::StatusOr<std::vector<std::optional<ScoreMap>>> Scores(
      std::span<const ScoreJob> pages) override {
    std::vector<std::optional<ScoreMap>> out(pages.size());
    KVSTOW_ASSIGN_OR_RETURN(const auto prepared, plan_.Prepare(pages, IsHosts));
    for (const ScoreBatch& batch : gpu::ScoreBatchesOf(plan_, pages, prepared)) {
      Scratch scratch(batch);
      const ScoreLaunch launch = LaunchOf(pages, batch, scratch);
      gpu::StartScores(plan_, [&](const auto& step) { RunStep(order_, launch, step); });
      batch.PutScores(scratch.Read(batch.refused()), scratch.Read(batch.last_scores()), out);
    }
    return out;
  }

  absl::StatusOr<std::vector<std::optional<Selection>>> Select(
      std::span<const ScoreJob> pages) override {
    std::vector<std::optional<Selection>> out(pages.size());
    KVSTOW_ASSIGN_OR_RETURN(const auto prepared, plan_.Prepare(pages, IsHosts));
    for (const ScoreBatch& batch : gpu::ScoreBatchesOf(plan_, pages, prepared)) {
      Scratch scratch(batch);
      const ScoreLaunch launch = LaunchOf(pages, batch, scratch);
      const auto start = [&](const auto& step) { RunStep(order_, launch, step); };
      gpu::StartScores(plan_, start);
      gpu::StartChoosing(plan_, launch.layout, batch.fills(), start);
      batch.PutSelections(scratch.Read(batch.refused()), scratch.Read(batch.kept()), out);
    }
    return out;
  }

 private:
  static ScoreLaunch LaunchOf(std::span<const ScoreJob> pages, const ScoreBatch& batch,
                              Scratch& scratch) {
    return batch.LaunchAt(scratch.data(), [&](size_t page) {
      return static_cast<const HostBuffer*>(pages[page].raw)->bytes().data();
    });
  }

  const gpu::ScorePlan plan_;
  const ThreadOrder order_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceScorer>> MakeEmulatedScorer(const Recipe& recipe,
                                                                 const KvSpec& spec,
                                                                 ThreadOrder order) {
  KVSTOW_ASSIGN_OR_RETURN(gpu::ScorePlan plan, gpu::ScorePlan::Make(recipe, spec));
  return std::make_unique<EmulatedScorer>(std::move(plan), order);
}

}  // namespace kvstow::testing
