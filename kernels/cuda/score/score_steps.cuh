// The steps of a policy, one after another: each is a launch on the GPU, and a loop in the
// emulation that tests use.
#ifndef KVSTOW_KERNELS_CUDA_SCORE_SCORE_STEPS_CUH_
#define KVSTOW_KERNELS_CUDA_SCORE_SCORE_STEPS_CUH_

#include "kernels/cuda/score/choose.cuh"
#include "kernels/cuda/score/lag_scores.cuh"
#include "kernels/cuda/score/map_steps.cuh"
#include "kernels/cuda/score/tokens_step.cuh"
#include "kernels/cuda/score/vector_scores.cuh"
#include "kernels/device/score_batch.h"

namespace kvstow::gpu {

// Calls start(step) for one op.
template <typename Start>
void StartScore(const ScoreOp& op, const Start& start) {
  switch (op.kind) {
    case ScoreOpKind::kKeyNorm:
      return start(NormStep{.part = 0, .to = op.to});
    case ScoreOpKind::kValueNorm:
      return start(NormStep{.part = 1, .to = op.to});
    case ScoreOpKind::kKeyDiversity:
      return start(DiversityStep{.to = op.to});
    case ScoreOpKind::kLag:
      return start(LagStep{.lag = op.number, .to = op.to});
    case ScoreOpKind::kPool:
    case ScoreOpKind::kChunk:
    case ScoreOpKind::kNorm:
      return start(TokensStep{op});
    case ScoreOpKind::kHeads:
      return start(EachItem{JoinHeads{.how = static_cast<Reduce>(op.how), .to = op.to}});
    case ScoreOpKind::kPosition:
    case ScoreOpKind::kRandom:
    case ScoreOpKind::kDecay:
    case ScoreOpKind::kShift:
    case ScoreOpKind::kPlus:
    case ScoreOpKind::kTimes:
      return start(EachItem{ScoreEntry{op}});
  }
}

// All scores of the policy.
template <typename Start>
void StartScores(const ScorePlan& plan, const Start& start) {
  for (const ScoreOp& op : plan.ops()) StartScore(op, start);
}

// And then what the budget makes of them; `fills` as ScoreBatch has them.
template <typename Start>
void StartChoosing(const ScorePlan& plan, const ScoreLayout& layout, std::span<const Fill> fills,
                   const Start& start) {
  const Budget& budget = plan.budget();
  const bool tokens = budget.scope == BudgetScope::kToken;
  if (tokens && budget.split > 0) start(EachItem{MakeMean{.from = plan.first(), .to = 0}});
  if (tokens) start(EachItem{MakeMean{.from = plan.last(), .to = 1}});
  Chosen chosen{layout.layers, layout.tokens, layout.heads, tokens, tokens ? 1 : plan.last()};
  if (tokens) chosen.layers = chosen.heads = 1;
  start(EachItem{BeginKeeping{chosen, budget.threshold.has_value(), budget.threshold.value_or(0)}});
  for (uint32_t i = 0; i < fills.size(); ++i) {
    Chosen by = chosen;
    if (fills[i].by_first) by.slot = tokens ? 0 : plan.first();
    start(FillStep(by, fills[i].scope, i));
  }
}

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_SCORE_SCORE_STEPS_CUH_
