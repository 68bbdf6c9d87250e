// Scores the tokens of a layer by the attention that queries of a known distribution will give
// them. They need no query of this request, so with calibrated statistics they hold for all
// requests.
//
// Each function computes the parts that depend on positions alone once for a page. Its LayerScore
// is then called for each layer of the page, with K as the page stores it (the spec says how to
// take RoPE off and put it on), and writes [tokens, heads]. `queries` must outlive it, and has a
// multiple of the layer's KV heads. It averages over the heads of a group. Free functions; scores
// are thread-safe.
#ifndef KVSTOW_KERNELS_IMPORTANCE_QUERY_SCORES_H_
#define KVSTOW_KERNELS_IMPORTANCE_QUERY_SCORES_H_

#include <cstdint>
#include <functional>

#include "kernels/importance/importance.h"
#include "kernels/importance/key_value_scores.h"

namespace kvstow {

using LayerScore = std::function<void(const LayerView&, float* out)>;

// Fills queries.direction from the means and covariances: the leading eigenvector of E[q q^T] of
// each head, toward its mean.
void FindDirections(QueryStatistics& queries);

// The attention that a Gaussian query is expected to give, over the `ahead` positions after the
// page (Expected Attention, arXiv:2510.00636):
//   softmax over tokens of  k . R mu / sqrt(d) + k^T R S R^T k / (2 d),  R averaged over positions
// The average takes 24 positions. The score is the mean over the group's heads.
LayerScore ExpectedAttentionScore(const PageToScore& page, uint32_t ahead);

// k before RoPE along the main direction of the queries, toward their mean: the leading singular
// vector of E[q q^T] (Q-Filters, arXiv:2503.02812).
LayerScore QueryDirectionScore(const PageToScore& page);

// The logit of a query at its centre, as a sum of cosines over RoPE's frequencies, averaged over
// future offsets 1, 2, 4 .. 65536, plus a norm term for the part of the queries that the centre
// does not hold. Standardized within each head before heads are averaged (TriAttention,
// arXiv:2604.04921).
LayerScore TrigonometricScore(const PageToScore& page);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_IMPORTANCE_QUERY_SCORES_H_
