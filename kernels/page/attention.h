// The attention that the tokens of a page get, and the queries that give it. Plain values.
#ifndef KVSTOW_KERNELS_PAGE_ATTENTION_H_
#define KVSTOW_KERNELS_PAGE_ATTENTION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace kvstow {

// The attention that the tokens of a page got, as a worker reports it. `heads` counts the KV heads
// or the query heads, a multiple of them. The query heads of one KV head stand together.
struct AttentionColumn {
  uint32_t heads = 0;
  uint64_t queries = 0;       // queries that the scores sum over
  std::vector<float> scores;  // [layers, tokens, heads]
};
// Columns by name. The presets read these:
//   attn_sum         probability received, summed over all queries (H2O)
//   attn_window      the same over the last queries only (SnapKV)
//   attn_window_var  its variance over those queries (CAKE)
//   attn_last        the same from the last query alone (TOVA)
//   attn_hits        how many of the last queries gave the token more than its even share
//                    (Scissorhands)
//   kvzip, kvzap     the scores of those methods
using AttentionColumns = std::map<std::string, AttentionColumn, std::less<>>;

// The queries of a model as a distribution, before RoPE: calibrated, or sent by a worker.
struct QueryStatistics {
  uint32_t layers = 0, heads = 0, dim = 0;  // query heads, a multiple of the KV heads
  std::vector<float> mean;                  // [layers, heads, dim]
  std::vector<float> covariance;            // [layers, heads, dim, dim]
  // E|q_f| of each pair of channels that RoPE turns together.
  std::vector<float> magnitude;  // [layers, heads, dim / 2]
  std::vector<float> direction;  // [layers, heads, dim]; FindDirections (query_scores.h) fills it
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_PAGE_ATTENTION_H_
