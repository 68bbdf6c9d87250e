// A transform changes a slab's values in place, before they are quantized. Most transforms are an
// orthonormal change of basis, or a shift: an error has the same size on both sides. A transform
// stores what it takes out of the values (a shift) in its side part, whose size depends on the
// shape only. Side parts stand before the quantizer's base level.
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
  // Returns whether an error has the same size on both sides.
  virtual bool preserves_error() const { return true; }
  // Returns whether the same side part inverts some of the tokens alone: a token's change depends
  // on no other token and on no position.
  virtual bool EachTokenAlone() const { return false; }
  // Returns null; or, for a signed Hadamard transform (hadamard.h), its kMaxHeadDim signs. A
  // quantizer may then do the transform itself.
  virtual const float* hadamard_signs() const { return nullptr; }
  // Quantizer::TileTokens: `shape` of Forward and Inverse is that of a tile.
  virtual uint32_t TileTokens(const SlabShape& shape) const { return shape.tokens; }
  // Writes SideBytes(shape) at `side`. Returns false when the side part cannot hold the values'
  // statistics.
  virtual bool Forward(const SlabShape& shape, float* values, uint8_t* side) const = 0;
  // Returns false when the side part cannot have come from Forward.
  virtual bool Inverse(const SlabShape& shape, const uint8_t* side, float* values) const = 0;
};

// The table of ops makes a transform by one of these.
using MakeTransform = absl::StatusOr<std::unique_ptr<Transform>> (*)(const OpArguments&);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_TRANSFORM_TRANSFORM_H_
