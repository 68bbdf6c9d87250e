// Scores of the tokens of one layer from its keys, values and positions alone. They need no
// attention, so they hold for every request that shares the page.
//
// `out` is [tokens, heads]. Scores have the same bits on every SIMD target (vector_sums.h), except
// those that need a matrix product: redundancy and leverage differ by rounding. Each score reads
// only the parts of the layer that it names. Free functions, thread-safe.
#ifndef KVSTOW_KERNELS_IMPORTANCE_KEY_VALUE_SCORES_H_
#define KVSTOW_KERNELS_IMPORTANCE_KEY_VALUE_SCORES_H_

#include <cstddef>
#include <cstdint>

namespace kvstow {

// One layer of a page in floats: k [tokens, heads, dim_k] as stored, v [tokens, heads, dim_v].
struct LayerView {
  uint32_t layer = 0, tokens = 0, heads = 0, dim_k = 0, dim_v = 0;
  uint64_t first_position = 0;
  const float* k = nullptr;
  const float* v = nullptr;

  const float* Key(uint32_t token, uint32_t head) const {
    return k + (size_t{token} * heads + head) * dim_k;
  }
  const float* Value(uint32_t token, uint32_t head) const {
    return v + (size_t{token} * heads + head) * dim_v;
  }
};

// Position in the sequence: the last token scores highest (a sliding window).
void PositionScore(const LayerView& layer, float* out);

// The baseline that every other score must beat: uniform in [0, 1) by a hash of seed, layer, head
// and position.
void RandomScore(const LayerView& layer, uint32_t seed, float* out);

// -|k|: keys of small norm draw attention (Devoto et al., arXiv:2406.11430).
void KeyNormScore(const LayerView& layer, float* out);

// |v|: what a token can add to the output.
void ValueNormScore(const LayerView& layer, float* out);

// -cos(k, mean of the normalized keys of the page): a key unlike the rest is important (KeyDiff,
// arXiv:2504.15364).
void KeyDiversityScore(const LayerView& layer, float* out);

// Minus the sum, over the number of tokens, of those cosines of k to the other keys of the page
// that are above `above` (R-KV, arXiv:2505.24133): how little of it others repeat.
void RedundancyScore(const LayerView& layer, float above, float* out);

// Normalizes each partition of `lag` tokens, channel by channel, by minimum and maximum of the next
// one. The score is the softmax over the partition of the deviation across channels, of K plus that
// of V (LagKV, arXiv:2504.04704). The last partition has no next and scores above all others.
void LagScore(const LayerView& layer, uint32_t lag, float* out);

// Statistical leverage of k among the keys of the page, k^T (K^T K + ridge)^-1 k: how much of its
// direction no other token has (the row score of Compactor and CUR).
void LeverageScore(const LayerView& layer, float* out);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_IMPORTANCE_KEY_VALUE_SCORES_H_
