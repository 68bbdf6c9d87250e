// Rotary position embeddings (RoFormer, arXiv:2104.09864), taken off K and put back.
//
//   const RopeRotation rotation(spec.rope, spec.head_dim_k, page.first_position, page.tokens);
//   rotation.Undo(spec.kv_heads, slab);   // [tokens, heads, head_dim], in place
//   rotation.Redo(spec.kv_heads, slab);
//
// Channel pair i of a token at position p is turned by p * frequency[i]; RopeFrequencies says what
// scaling does to the frequencies:
//   none    theta^(-2i/n), n = rotary dims
//   linear  the same over `factor` (position interpolation, arXiv:2306.15595)
//   ntk     theta grows to theta * factor^(n / (n - 2)) ("NTK-aware"; not the dynamic variant,
//   whose
//           rotation depends on the length of the sequence)
//   yarn    a ramp between `linear` and `none` (arXiv:2309.00071), as Hugging Face computes it; K
//   is
//           also multiplied by 0.1 ln(factor) + 1 where factor > 1
//   llama3  by wavelength: long ones over `factor`, short ones unchanged, a blend between
//
// Undo is the inverse of Redo up to rounding (2^-22 of the pair's norm). Angles are computed in
// F64. Both do nothing when the spec has no layout or K is stored before RoPE. The plan depends on
// positions only: make one a page and use it for all layers.
//
// Immutable after construction: thread-safe. The spec must be valid (page.h).
#ifndef KVSTOW_KERNELS_TRANSFORM_ROPE_H_
#define KVSTOW_KERNELS_TRANSFORM_ROPE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/page/page.h"

namespace kvstow {

// Radians a position, one a channel pair; empty when the spec has no rotary positions. Always
// finite: a pair for which the scaling's formula has no value (YaRN without a context length) is
// not turned.
std::vector<double> RopeFrequencies(const RopeSpec& rope, uint32_t head_dim);

// What the scaling multiplies K with beside turning it: 1 but for YaRN.
double RopeMagnitude(const RopeSpec& rope);

class RopeRotation {
 public:
  RopeRotation(const RopeSpec& rope, uint32_t head_dim, uint64_t first_position, uint32_t tokens);

  // Undo and Redo leave values as they are.
  bool identity() const { return pairs_ == 0; }
  // Channel pairs that are turned, and of each token and pair, [tokens, pairs()], the angle's.
  size_t pairs() const { return pairs_; }
  std::span<const float> cosines() const { return cos_; }
  std::span<const float> sines() const { return sin_; }
  // `values` is a slab [tokens, heads, head_dim].
  void Undo(uint32_t heads, float* values) const;
  void Redo(uint32_t heads, float* values) const;
  // The same for `count` of the tokens, from token `first` on; `values` holds only those.
  void Undo(uint32_t first, uint32_t count, uint32_t heads, float* values) const;
  void Redo(uint32_t first, uint32_t count, uint32_t heads, float* values) const;

 private:
  // Turns by the angles whose cosines and (with their sign) sines are given, scaled.
  void Turn(uint32_t first, uint32_t count, uint32_t heads, float scale, float sign,
            float* values) const;

  const bool interleaved_;
  const uint32_t head_dim_, tokens_;
  size_t pairs_ = 0;
  float magnitude_ = 1;
  std::vector<float> cos_, sin_;  // [tokens, pairs]
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_TRANSFORM_ROPE_H_
