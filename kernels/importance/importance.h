// Importance: how much the tokens of a page matter, as numbers, and the choices that follow from
// them.
//
// Data flows one way. A page and its attention give scores (score_ops.cc). Scores give a selection
// (budget.h) or steps (token_steps.h). A policy (policy.h) is that chain written out as text. A
// selection says which tokens a sparse page keeps. Steps say how finely each token of a dense page
// is coded.
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

#include "kernels/page/attention.h"
#include "kernels/page/page.h"

namespace kvstow {

// One number for each (layer, token, KV head) of a page. A higher score is more important.
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

struct PageToScore {
  const KvSpec& spec;
  std::span<const uint8_t> raw;  // as page.h lays it out
  uint32_t tokens = 0;
  uint64_t first_position = 0;
  const AttentionColumns* columns = nullptr;  // null: nothing was reported
  const QueryStatistics* queries = nullptr;   // null: nothing is known
  // Nonzero: the token stays, whatever its score (system prompts, spans that a worker names). Empty
  // or [tokens].
  std::span<const uint8_t> protected_tokens = {};
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_IMPORTANCE_IMPORTANCE_H_
