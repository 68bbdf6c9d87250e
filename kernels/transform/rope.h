// Rotary position embeddings (RoFormer, arXiv:2104.09864): takes them off K and puts them back.
//
//   const LayerRotations rotations(spec, layers, page.first_position, page.tokens);
//   rotations.Of(layer).Undo(spec.kv_heads, slab);   // [tokens, heads, head_dim], in place
//   rotations.Of(layer).Redo(spec.kv_heads, slab);
//
// Channel pair i of a token at position p is turned by p * frequency[i]; RopeFrequencies says what
// scaling does to the frequencies:
//   none    theta^(-2i/n), n = rotary dims
//   linear  the same over `factor` (position interpolation, arXiv:2306.15595)
//   ntk     theta grows to theta * factor^(n / (n - 2)) ("NTK-aware", the static variant)
//   yarn    a ramp between `linear` and `none` (arXiv:2309.00071), as Hugging Face computes it;
//           also multiplies K by 0.1 ln(factor) + 1 where factor > 1
//   llama3  by wavelength: long ones over `factor`, short ones unchanged, a blend between
//
// Undo is the inverse of Redo up to rounding (2^-22 of the pair's norm). Angles are computed in
// F64. Both do nothing when the spec has no layout or K is stored before RoPE. A rotation depends
// on positions only: make one a page and use it for all layers of one RoPE.
//
// Immutable after construction: thread-safe. The spec must be valid (page.h).
#ifndef KVSTOW_KERNELS_TRANSFORM_ROPE_H_
#define KVSTOW_KERNELS_TRANSFORM_ROPE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/page/page.h"

namespace kvstow {

// Returns radians a position for each channel pair; empty when the spec has no rotary positions.
// All are finite: a pair without a value by the scaling's formula (YaRN without a context length)
// is not turned.
std::vector<double> RopeFrequencies(const RopeSpec& rope, uint32_t head_dim);

// Returns the factor of the scaling on K, beside turning it: 1 except for YaRN.
double RopeMagnitude(const RopeSpec& rope);

class RopeRotation {
 public:
  // The tokens follow `before` others of their page; the first of them is at `first_position`. They
  // turn by the very angles that they have among all tokens of the page.
  RopeRotation(const RopeSpec& rope, uint32_t head_dim, uint64_t first_position, uint32_t tokens,
               uint32_t before = 0);

  // Returns whether Undo and Redo leave values as they are.
  bool identity() const { return pairs_ == 0; }
  // Channel pairs that are turned, and of each token and pair, [tokens, pairs()], the angle's.
  size_t pairs() const { return pairs_; }
  std::span<const float> cosines() const { return cos_; }
  std::span<const float> sines() const { return sin_; }
  // `values` is a slab [tokens, heads, head_dim].
  void Undo(uint32_t heads, float* values) const;
  void Redo(uint32_t heads, float* values) const;
  // Do the same for `count` of the tokens, from token `first` on; `values` holds only those.
  void Undo(uint32_t first, uint32_t count, uint32_t heads, float* values) const;
  void Redo(uint32_t first, uint32_t count, uint32_t heads, float* values) const;

 private:
  // Turns by the angles with these cosines and signed sines, scaled.
  void Turn(uint32_t first, uint32_t count, uint32_t heads, float scale, float sign,
            float* values) const;

  const bool interleaved_;
  const uint32_t head_dim_, tokens_;
  size_t pairs_ = 0;
  float magnitude_ = 1;
  std::vector<float> cos_, sin_;  // [tokens, pairs]
};

// The rotations of some layers of a page, which may have two kinds of RoPE (OtherRope).
class LayerRotations {
 public:
  // `spec` must be valid; `layers` are of the page. For `before` see RopeRotation.
  LayerRotations(const KvSpec& spec, LayerRange layers, uint64_t first_position, uint32_t tokens,
                 uint32_t before = 0);

  // Returns the rotation of one of these layers.
  const RopeRotation& Of(uint32_t layer) const {
    return std::ranges::binary_search(others_, layer) ? *other_ : *usual_;
  }

 private:
  const std::vector<uint32_t> others_;         // layers that have the other RoPE
  std::optional<RopeRotation> usual_, other_;  // nullopt: none of the layers has it
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_TRANSFORM_ROPE_H_
