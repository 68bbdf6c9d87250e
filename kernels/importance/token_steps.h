// Token classes: turn scores into how finely each token of a dense page is coded.
//
//   column(name=attn_sum,seen=16)|class(power=0.2)|kvstow-cal(run=10,step=4)
//
// `class` is the action of such a policy. A token's importance in a run of layers is its score over
// the mean score of its layer and head, averaged over the layers and heads of the run. Its step is
// (importance over the page's geometric mean)^-power times the usual one. A token whose step is
// twice as coarse is one plane short. Tables and planes do not depend on the classes.
//
// Scores count from 0 on: one that is not positive, or not finite, counts as 0. A token's
// importance is at least kLeastImportance of the mean. Scores of other ranges go through
// norm(kind=softmax), norm(kind=rank) or shift. Free functions, thread-safe.
#ifndef KVSTOW_KERNELS_IMPORTANCE_TOKEN_STEPS_H_
#define KVSTOW_KERNELS_IMPORTANCE_TOKEN_STEPS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/importance/budget.h"
#include "kernels/importance/importance.h"

namespace kvstow {

inline constexpr float kLeastImportance = 1.0f / 64;
inline constexpr double kDefaultClassPower = 0.2;

// Returns log2 of the step of each token of the page over the usual one, in the layers
// [layers.first, layers.first + layers.count). Protected tokens have no coarser step than the usual
// one.
std::vector<float> LogSteps(const ScoreMap& scores, LayerRange layers, double power,
                            const Protection& protection,
                            std::span<const uint8_t> protected_tokens);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_IMPORTANCE_TOKEN_STEPS_H_
