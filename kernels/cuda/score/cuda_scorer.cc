#include "base/status_macros.h"
#include "kernels/cuda/cuda_buffer.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/score/score_launch.h"
#include "kernels/device/score_batch.h"

namespace kvstow {
namespace {

using gpu::Piece;
using gpu::ScoreBatch;
using gpu::ScoreLaunch;

class CudaScorer final : public DeviceScorer {
 public:
  CudaScorer(gpu::ScorePlan plan, const CudaContext& context)
      : plan_(std::move(plan)), context_(context) {}

  absl::StatusOr<std::vector<std::optional<ScoreMap>>> Scores(
      std::span<const ScoreJob> pages) override {
    std::vector<std::optional<ScoreMap>> out(pages.size());
    KVSTOW_RETURN_IF_ERROR(Run(pages, [&](const ScoreBatch& batch, Answer answer) -> absl::Status {
      KVSTOW_ASSIGN_OR_RETURN(const auto refused, answer.Read(batch.refused()));
      KVSTOW_ASSIGN_OR_RETURN(const auto scores, answer.Read(batch.last_scores()));
      batch.PutScores(refused, scores, out);
      return absl::OkStatus();
    }));
    return out;
  }

  absl::StatusOr<std::vector<std::optional<Selection>>> Select(
      std::span<const ScoreJob> pages) override {
    std::vector<std::optional<Selection>> out(pages.size());
    KVSTOW_RETURN_IF_ERROR(Run(pages, [&](const ScoreBatch& batch, Answer answer) -> absl::Status {
      KVSTOW_RETURN_IF_ERROR(answer.Started(
          LaunchChoosing(plan_, answer.launch, batch.fills(), answer.lane.stream())));
      KVSTOW_ASSIGN_OR_RETURN(const auto refused, answer.Read(batch.refused()));
      KVSTOW_ASSIGN_OR_RETURN(const auto kept, answer.Read(batch.kept()));
      batch.PutSelections(refused, kept, out);
      return absl::OkStatus();
    }));
    return out;
  }

 private:
  // The scores of a batch are under way on the lane's stream.
  struct Answer {
    Lane& lane;
    uint8_t* scratch;
    const ScoreLaunch& launch;

    // On an error nothing of the launch is under way any more.
    absl::Status Started(cudaError_t code) const {
      return code == cudaSuccess ? absl::OkStatus() : lane.Drain(code, "starting a kernel");
    }
    absl::StatusOr<std::vector<uint8_t>> Read(const Piece& piece) const {
      std::vector<uint8_t> bytes(piece.bytes);
      KVSTOW_RETURN_IF_ERROR(lane.ToHost(scratch + piece.at, bytes));
      return bytes;
    }
  };

  // Calls take(batch, answer) for each batch of the call.
  template <typename Take>
  absl::Status Run(std::span<const ScoreJob> pages, const Take& take) const {
    KVSTOW_ASSIGN_OR_RETURN(const auto prepared,
                            plan_.Prepare(pages, [&](const DeviceBuffer& buffer) {
                              const auto* cuda = dynamic_cast<const CudaBuffer*>(&buffer);
                              return cuda != nullptr && cuda->ordinal() == context_.gpu.ordinal();
                            }));
    const OnGpu current(context_.gpu);
    KVSTOW_RETURN_IF_ERROR(current.status());
    const Lanes::Hold lane(context_.lanes);
    for (const ScoreBatch& batch : gpu::ScoreBatchesOf(plan_, pages, prepared)) {
      Scratch scratch;
      KVSTOW_RETURN_IF_ERROR(scratch.Open(context_, lane->stream(), batch.scratch_bytes()));
      KVSTOW_RETURN_IF_ERROR(lane->ToDevice(batch.input(), scratch.data()));
      KVSTOW_RETURN_IF_ERROR(lane->ToDevice(batch.given(), scratch.data() + batch.given_at()));
      const ScoreLaunch launch = batch.LaunchAt(scratch.data(), [&](size_t page) {
        return static_cast<const CudaBuffer*>(pages[page].raw)->data();
      });
      const Answer answer{*lane, scratch.data(), launch};
      KVSTOW_RETURN_IF_ERROR(answer.Started(LaunchScores(plan_, launch, lane->stream())));
      KVSTOW_RETURN_IF_ERROR(take(batch, answer));
    }
    return absl::OkStatus();
  }

  const gpu::ScorePlan plan_;
  const CudaContext context_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceScorer>> MakeCudaScorer(const Recipe& recipe,
                                                             const KvSpec& spec,
                                                             const CudaContext& context) {
  KVSTOW_ASSIGN_OR_RETURN(gpu::ScorePlan plan, gpu::ScorePlan::Make(recipe, spec));
  return std::make_unique<CudaScorer>(std::move(plan), context);
}

}  // namespace kvstow
