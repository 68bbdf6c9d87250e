// Importance: how much the tokens of a page matter, as numbers, and what follows from them.
//
// Data flows one way: a page and what is known of its attention -> scores (score_ops.h) -> a
// selection (budget.h). A policy (policy.h) is that chain written out as text. Selections say
// which tokens a sparse page keeps, or how many planes a token of a dense page may lose.
//
// Values and free functions; thread-safe.
#ifndef KVSTOW_KERNELS_IMPORTANCE_IMPORTANCE_H_
#define KVSTOW_KERNELS_IMPORTANCE_IMPORTANCE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/page.h"

namespace kvstow {

// One number for each (layer, token, KV head) of a page. In scores higher is more important.
struct ScoreMap {
  uint32_t layers = 0, tokens = 0, heads = 0;
  std::vector<float> values;  // [layers, tokens, heads], row-major

  ScoreMap() = default;
  ScoreMap(uint32_t layers, uint32_t tokens, uint32_t heads)
      : layers(layers), tokens(tokens), heads(heads), values(size_t{layers} * tokens * heads) {}
  size_t LayerSize() const { return size_t{tokens} * heads; }
  float* Layer(uint32_t layer) { return values.data() + layer * LayerSize(); }
  const float* Layer(uint32_t layer) const { return values.data() + layer * LayerSize(); }
};

// What attention gave the tokens of a page, as a worker reports it. `heads` may be the KV heads or
// the query heads, a multiple of them: query heads of one KV head stand together.
struct AttentionColumn {
  uint32_t heads = 0;
  uint64_t queries = 0;       // that the scores sum over
  std::vector<float> scores;  // [layers, tokens, heads]
};
// By name. Names that the presets read:
//   attn_sum         probability received, summed over all queries (H2O)
//   attn_window      the same over the last queries only (SnapKV)
//   attn_window_var  its variance over those queries (CAKE)
//   attn_last        by the last query alone (TOVA)
//   attn_hits        how many of the last queries gave the token more than its even share
//                    (Scissorhands)
//   kvzip, kvzap     what those methods give
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

struct PageToScore {
  const KvSpec& spec;
  std::span<const uint8_t> raw;  // as page.h lays it out
  uint32_t tokens = 0;
  uint64_t first_position = 0;
  const AttentionColumns* columns = nullptr;  // null: nothing was reported
  const QueryStatistics* queries = nullptr;   // null: nothing is known
  // Nonzero: this token stays, whatever its score (system prompts, spans that a worker names).
  // Empty or [tokens].
  std::span<const uint8_t> protected_tokens = {};
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_IMPORTANCE_IMPORTANCE_H_
