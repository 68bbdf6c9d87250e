// The attention that tokens of a page get from the mean queries of the model's heads
// (calibration/query_means.h).
//
// The mean query asks at every kQueriesEvery-th token, from the last one backwards, turned by RoPE
// to that position. The score of a token in a KV head is the mean of softmax(q k) over the queries
// that see it, and over the query heads of the KV head; over the mean score of the head. Layers
// between two that have mean queries get scores between theirs. Those before the first or behind
// the last get its scores.
//
// Measured on SmolLM2-135M: steps that follow the scores take a fifth to a quarter off the KL
// divergence at equal bytes, as steps do that follow the page's true queries
// (docs/decisions/0095-mean-queries.md).
//
// A free function: thread-safe.
#ifndef KVSTOW_KERNELS_IMPORTANCE_FORETOLD_ATTENTION_H_
#define KVSTOW_KERNELS_IMPORTANCE_FORETOLD_ATTENTION_H_

#include "absl/status/statusor.h"
#include "kernels/calibration/query_means.h"
#include "kernels/importance/asking_tokens.h"
#include "kernels/importance/importance.h"

namespace kvstow {

// Returns the scores of a page, whose spec has the shape of the queries' calibration. Fails with
// OUT_OF_RANGE where K of a layer that has mean queries holds NaN or Inf.
absl::StatusOr<ScoreMap> ForetoldAttention(const QueryMeans& means, const PageToScore& page);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_IMPORTANCE_FORETOLD_ATTENTION_H_
