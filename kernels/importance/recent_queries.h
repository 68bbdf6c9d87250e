// The attention of the last queries of a sequence, as columns for policies that go by recent
// attention, and their statistics, for policies that go by the distribution of queries. For workers
// that keep queries, and for cases that carry them.
//
// Free functions, thread-safe.
#ifndef KVSTOW_KERNELS_IMPORTANCE_RECENT_QUERIES_H_
#define KVSTOW_KERNELS_IMPORTANCE_RECENT_QUERIES_H_

#include <cstdint>
#include <vector>

#include "kernels/importance/importance.h"
#include "kernels/importance/key_value_scores.h"

namespace kvstow {

// Queries of one layer, after RoPE, [count, heads, dim]: those of the last `count` tokens of a
// sequence. `heads` is a multiple of the KV heads.
struct RecentQueries {
  uint32_t count = 0, heads = 0, dim = 0;
  const float* values = nullptr;
};

// Causal attention to all tokens of a sequence, [tokens, heads] each.
struct RecentAttention {
  std::vector<float> sum;       // probability received
  std::vector<float> variance;  // of the probability, over the queries
  std::vector<float> last;      // from the last query
  std::vector<float> hits;      // queries that gave more than one over the tokens that they saw
};

// `keys` is the whole sequence, K after RoPE; V is not read. Only the last `window` queries count;
// `window` is at least 1.
RecentAttention AttentionOf(const LayerView& keys, const RecentQueries& queries, uint32_t window);

// Adds the layer's queries to `out`, whose vectors grow layer by layer. `first_position` is the
// position of the first query.
void AppendQueryStatistics(const RecentQueries& queries, const RopeSpec& rope,
                           uint64_t first_position, QueryStatistics& out);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_IMPORTANCE_RECENT_QUERIES_H_
