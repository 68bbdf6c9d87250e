// Makes the steps that devices take from a recipe's policy and a KvSpec, and the input that a
// call's pages bring along. device_scorer.h lists the policies.
//
// Immutable; thread-safe. Errors: UNIMPLEMENTED names the op that is not on devices (the CPU's
// policy then serves), INVALID_ARGUMENT is the recipe's own.
#ifndef KVSTOW_KERNELS_DEVICE_SCORE_PLAN_H_
#define KVSTOW_KERNELS_DEVICE_SCORE_PLAN_H_

#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/device/device_scorer.h"
#include "kernels/device/score_layout.h"
#include "kernels/importance/policy.h"

namespace kvstow::gpu {

// The input that the host makes for a page.
struct PreparedPage {
  std::vector<ScoreMap> given;  // the first slots: columns and tables of heads
  std::vector<Fill> fills;      // as many, of the same scopes, for every page
};

class ScorePlan {
 public:
  static absl::StatusOr<ScorePlan> Make(const Recipe& recipe, const KvSpec& spec);

  const KvSpec& spec() const { return spec_; }
  const ImportancePolicy& policy() const { return policy_; }
  const Budget& budget() const { return policy_.budget(); }
  std::span<const ScoreOp> ops() const { return ops_; }
  // Slots in use, those of them that the host gives, and those of the first and the last score.
  uint32_t slots() const { return slots_; }
  uint32_t given() const { return static_cast<uint32_t>(given_.size()); }
  uint32_t first() const { return first_; }
  uint32_t last() const { return last_; }

  ScoreLayout LayoutOf(uint32_t tokens) const;

  // One for each page; nothing where a column is not finite. INVALID_ARGUMENT and
  // FAILED_PRECONDITION name the first page that does not fit; `owns` says whether a buffer is the
  // device's.
  using Owns = absl::FunctionRef<bool(const DeviceBuffer&)>;
  absl::StatusOr<std::vector<std::optional<PreparedPage>>> Prepare(std::span<const ScoreJob> pages,
                                                                   Owns owns) const;

 private:
  ScorePlan(const KvSpec& spec, ImportancePolicy policy)
      : spec_(spec), policy_(std::move(policy)) {}

  absl::Status AddOp(const Op& op, std::vector<uint32_t>& stack);
  absl::Status CheckPage(const ScoreJob& page, Owns owns) const;
  absl::StatusOr<std::optional<PreparedPage>> PreparePage(const ScoreJob& page) const;

  KvSpec spec_;
  ImportancePolicy policy_;
  std::vector<ScoreOp> ops_;
  std::vector<ScoreStep> given_;
  uint32_t slots_ = 0, first_ = 0, last_ = 0;
};

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_DEVICE_SCORE_PLAN_H_
