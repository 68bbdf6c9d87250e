// A launch of pages to score, and its scratch memory, which holds all that goes to the device and
// all that comes back. The GPU's scorer and the emulation in tests are loops over batches: copy the
// input to its place, start the steps, read the answer.
//
// Values; thread-safe. The pages of a call outlive its batches.
#ifndef KVSTOW_KERNELS_DEVICE_SCORE_BATCH_H_
#define KVSTOW_KERNELS_DEVICE_SCORE_BATCH_H_

#include <span>
#include <vector>

#include "kernels/device/batches.h"
#include "kernels/device/score_plan.h"

namespace kvstow::gpu {

// Bytes within the scratch memory.
struct Piece {
  size_t at = 0, bytes = 0;
};

class ScoreBatch {
 public:
  // `pages`: places in the call, of pages of one length, all of them prepared.
  ScoreBatch(const ScorePlan& plan, std::span<const ScoreJob> call,
             std::span<const std::optional<PreparedPage>> prepared, Batch pages);

  // The memory that the device needs. Only `input` at its beginning, and `given`, the scores that
  // the host gives, are initialised.
  size_t scratch_bytes() const { return scratch_bytes_; }
  std::span<const uint8_t> input() const { return input_; }
  std::span<const uint8_t> given() const {
    return {reinterpret_cast<const uint8_t*>(given_.data()), given_.size() * sizeof(float)};
  }
  size_t given_at() const { return maps_at_; }

  // The scratch memory is there; `raw(page)` is where the raw bytes of a page of the call are.
  template <typename Raw>
  ScoreLaunch LaunchAt(uint8_t* scratch, const Raw& raw) const {
    ScoreLaunch launch = launch_;
    for (uint32_t i = 0; i < launch.pages; ++i) launch.raw[i] = raw(pages_[i]);
    launch.counts = reinterpret_cast<const uint32_t*>(scratch);
    launch.protected_tokens = scratch + protected_at_;
    launch.refused = reinterpret_cast<uint32_t*>(scratch + refused_at_);
    launch.keep = scratch + keep_at_;
    launch.maps = reinterpret_cast<float*>(scratch + maps_at_);
    launch.means = reinterpret_cast<float*>(scratch + means_at_);
    return launch;
  }

  // Scopes of the fills, which are alike for all pages.
  std::span<const Fill> fills() const { return fills_; }

  // Where the answers lie: which pages were refused; what the last score is; what is kept.
  Piece refused() const { return {refused_at_, launch_.pages * sizeof(uint32_t)}; }
  Piece last_scores() const;
  Piece kept() const { return {keep_at_, launch_.pages * page_keep_}; }
  // And what they are. Pages that were refused stay as they are in `out`, [pages of the call].
  void PutScores(std::span<const uint8_t> refused, std::span<const uint8_t> last_scores,
                 std::span<std::optional<ScoreMap>> out) const;
  void PutSelections(std::span<const uint8_t> refused, std::span<const uint8_t> kept,
                     std::span<std::optional<Selection>> out) const;

 private:
  void AddInput(std::span<const ScoreJob> call,
                std::span<const std::optional<PreparedPage>> prepared);
  void Arrange();

  const ScorePlan& plan_;
  const Batch pages_;
  ScoreLaunch launch_;
  std::vector<Fill> fills_;
  std::vector<uint8_t> input_;  // counts, protected tokens, refused
  std::vector<float> given_;
  size_t page_keep_ = 0;
  size_t protected_at_ = 0, refused_at_ = 0, keep_at_ = 0, maps_at_ = 0, means_at_ = 0;
  size_t scratch_bytes_ = 0;
};

// The batches of a call; pages that are not prepared are in none.
std::vector<ScoreBatch> ScoreBatchesOf(const ScorePlan& plan, std::span<const ScoreJob> call,
                                       std::span<const std::optional<PreparedPage>> prepared);

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_DEVICE_SCORE_BATCH_H_
