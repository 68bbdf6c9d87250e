// The attention that tokens of a page get from the page's own queries, as K and V foretell these
// (calibration/query_maps.h).
//
// The score of a token in a KV head is the mean of softmax(q k) over the queries that see it, and
// over the query heads of the KV head; over the mean score of the head. Every kQueriesEvery-th
// token asks, from the last one backwards. Layers between two that have a map get scores between
// theirs. Those before the first or behind the last get its scores.
//
// Measured on SmolLM2-135M: the logarithms of these scores and of those by the page's true queries
// correlate by .99. Steps that follow the scores take a fifth to a quarter off the KL divergence at
// equal bytes (docs/decisions/0093-attention-without-queries.md).
//
// A free function: thread-safe.
#ifndef KVSTOW_KERNELS_IMPORTANCE_FORETOLD_ATTENTION_H_
#define KVSTOW_KERNELS_IMPORTANCE_FORETOLD_ATTENTION_H_

#include "absl/status/statusor.h"
#include "kernels/calibration/query_maps.h"
#include "kernels/importance/importance.h"

namespace kvstow {

inline constexpr uint32_t kQueriesEvery = 8;
// The power that steps follow the scores with (LogSteps in token_steps.h).
inline constexpr double kForetoldPower = 0.25;

// Returns the scores of a page, whose spec has the shape of the maps' calibration. Fails with
// OUT_OF_RANGE where a layer that has a map holds NaN or Inf.
absl::StatusOr<ScoreMap> ForetoldAttention(const QueryMaps& maps, const PageToScore& page);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_IMPORTANCE_FORETOLD_ATTENTION_H_
