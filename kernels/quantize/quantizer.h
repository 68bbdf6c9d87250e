// A quantizer: the values of a slab to the bodies of its levels, and back from leading levels.
//
// A slab is coded tile after tile, so that its values stay in the cache between one step and the
// next; how it is cut changes no byte.
//
// A Quantizer is immutable and knows no page: thread-safe. Bodies have a fixed size that depends on
// the shape only, so that every slab of a run has a known place. The same values give the same
// bytes on every SIMD target. No float sum, no fused multiply-add: where order or contraction could
// change a bit, it is written out.
#ifndef KVSTOW_KERNELS_QUANTIZE_QUANTIZER_H_
#define KVSTOW_KERNELS_QUANTIZE_QUANTIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/page/page.h"
#include "kernels/page/slab.h"
#include "kernels/quantize/body_parts.h"
#include "kernels/recipe/op_arguments.h"

namespace kvstow {

// What the values of a tile are in a page.
struct RawValues {
  DType dtype = DType::kF16;
  const float* signs = nullptr;  // [dim]; null: as they are
};

class Quantizer {
 public:
  virtual ~Quantizer() = default;

  virtual uint32_t levels() const = 0;
  // Size of the body of one level.
  virtual size_t LevelBytes(const SlabShape& shape, uint32_t level) const = 0;
  // What that body consists of, so that some tokens can be cut out of it and decoded alone. None,
  // as here: it cannot be cut, and a reader of some tokens decodes all of the slab.
  virtual std::vector<BodyPart> Parts(const SlabShape& /*shape*/, uint32_t /*level*/) const {
    return {};
  }
  // How many tokens depend on each other: tiles begin and end at multiples of it, or at the end of
  // the slab, and at multiples of 8 values. Who does not say so takes whole slabs only.
  virtual uint32_t TileTokens(const SlabShape& shape) const { return shape.tokens; }
  // Writes the tile's part of all levels; `bodies[l]` is that of the whole slab and has room for
  // LevelBytes(tile.slab, l). `values` are the tile's, all finite. False when they lie beyond what
  // the scales can hold.
  virtual bool Encode(const SlabTile& tile, const float* values,
                      std::span<uint8_t* const> bodies) const = 0;
  // Reads the tile's part of the first bodies.size() >= 1 levels and writes tile.values() finite
  // values. False when the bodies cannot have come from Encode.
  virtual bool Decode(const SlabTile& tile, std::span<const uint8_t* const> bodies,
                      float* values) const = 0;

  // Whether the tile's values may stay what they are in a page: EncodeRaw and DecodeRaw then do,
  // in one pass each, what LoadFloats, Encode, Decode and StoreFloats do. Where `raw` has `signs`,
  // a Hadamard transform with them (transform/hadamard.h) stands before Encode and behind Decode.
  virtual bool TakesRaw(const SlabTile& /*tile*/, const RawValues& /*raw*/) const { return false; }
  // Adds the sums (squared_error.h) of the values that Encode gets, and of what its codes leave.
  virtual bool EncodeRaw(const SlabTile& /*tile*/, const RawValues& /*raw*/,
                         const uint8_t* /*from*/, std::span<uint8_t* const> /*bodies*/,
                         double* /*energy*/, double* /*error*/) const {
    return false;
  }
  virtual bool DecodeRaw(const SlabTile& /*tile*/, const RawValues& /*raw*/,
                         std::span<const uint8_t* const> /*bodies*/, uint8_t* /*to*/) const {
    return false;
  }
};

// How the table of ops makes one; INVALID_ARGUMENT names the argument and its limits.
using MakeQuantizer = absl::StatusOr<std::unique_ptr<Quantizer>> (*)(const OpArguments&);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_QUANTIZER_H_
