// A transform: a change of a slab's values, in place, before they are quantized. Most are an
// orthonormal change of their basis, or a shift of them: an error has the same size on both sides.
// What it takes out of the values (a shift) is its side part, whose size depends on the shape only;
// side parts stand before the quantizer's base level.
//
// A Transform is immutable and knows no page: thread-safe. The same values give the same bits on
// every SIMD target.
#ifndef KVSTOW_KERNELS_TRANSFORM_TRANSFORM_H_
#define KVSTOW_KERNELS_TRANSFORM_TRANSFORM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/page/slab.h"
#include "kernels/recipe/op_arguments.h"

namespace kvstow {

class Transform {
 public:
  virtual ~Transform() = default;
  virtual size_t SideBytes(const SlabShape&) const { return 0; }
  // Whether an error has the same size on both sides.
  virtual bool keeps_error() const { return true; }
  // Whether the same side part inverts some of the tokens alone: what is done to a token depends on
  // no other token and on no position.
  virtual bool EachTokenAlone() const { return false; }
  // Not null: the transform is a signed Hadamard transform (hadamard.h) with these signs,
  // kMaxHeadDim of them, which a quantizer may do itself.
  virtual const float* hadamard_signs() const { return nullptr; }
  // Quantizer::TileTokens: `shape` of Forward and Inverse is that of a tile.
  virtual uint32_t TileTokens(const SlabShape& shape) const { return shape.tokens; }
  // Writes SideBytes(shape) at `side`. False when it cannot hold what the values need.
  virtual bool Forward(const SlabShape& shape, float* values, uint8_t* side) const = 0;
  // False when the side part cannot have come from Forward.
  virtual bool Inverse(const SlabShape& shape, const uint8_t* side, float* values) const = 0;
};

// How the table of ops makes one.
using MakeTransform = absl::StatusOr<std::unique_ptr<Transform>> (*)(const OpArguments&);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_TRANSFORM_TRANSFORM_H_
