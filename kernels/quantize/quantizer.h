// A quantizer codes the values of a slab as the bodies of its levels, and decodes leading levels.
//
// It codes a slab tile after tile, so that values stay in the cache between one step and the next.
// The cut into tiles changes no byte.
//
// A Quantizer is immutable and knows no page: thread-safe. Bodies have a fixed size that depends on
// the shape only, so that every slab of a run has a known place. The same values give the same
// bytes on every SIMD target: where the order of a sum, or a fused multiply-add, could change a
// bit, the code writes the operations out.
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

// The place and the type of a tile's values in a page.
struct RawValues {
  DType dtype = DType::kF16;
  const float* signs = nullptr;  // [dim]; null: as they are
};

// A second interface that a quantizer may have: it codes a tile's values straight from the page's
// type, in one pass. EncodeRaw does LoadFloats and Encode; DecodeRaw does Decode and StoreFloats.
// Where `raw` has `signs`, a Hadamard transform with them (transform/hadamard.h) stands before
// Encode and behind Decode.
class RawQuantizer {
 public:
  virtual ~RawQuantizer() = default;
  // Returns whether it has raw forms for this tile; the other two are only for such tiles.
  virtual bool TakesRaw(const SlabTile& tile, const RawValues& raw) const = 0;
  // Adds the sums (squared_error.h) of the values that Encode gets, and of the error that its codes
  // leave.
  virtual bool EncodeRaw(const SlabTile& tile, const RawValues& raw, const uint8_t* from,
                         std::span<uint8_t* const> bodies, double* energy, double* error) const = 0;
  virtual bool DecodeRaw(const SlabTile& tile, const RawValues& raw,
                         std::span<const uint8_t* const> bodies, uint8_t* to) const = 0;
};

class Quantizer {
 public:
  virtual ~Quantizer() = default;

  virtual uint32_t levels() const = 0;
  // Returns the size of the body of one level.
  virtual size_t LevelBytes(const SlabShape& shape, uint32_t level) const = 0;
  // Returns the parts of that body, so that some tokens can be cut out of it and decoded alone.
  // None, as here: it cannot be cut, and a reader of some tokens decodes all of the slab.
  virtual std::vector<BodyPart> Parts(const SlabShape& /*shape*/, uint32_t /*level*/) const {
    return {};
  }
  // Returns how many tokens depend on each other. Tiles begin and end at multiples of it, or at the
  // end of the slab, and at multiples of 8 values. The default takes whole slabs only.
  virtual uint32_t TileTokens(const SlabShape& shape) const { return shape.tokens; }
  // Writes the tile's part of all levels; `bodies[l]` is that of the whole slab and has room for
  // LevelBytes(tile.slab, l). `values` are the tile's, all finite. Returns false when they lie
  // beyond the range of the scales.
  virtual bool Encode(const SlabTile& tile, const float* values,
                      std::span<uint8_t* const> bodies) const = 0;
  // Reads the tile's part of the first bodies.size() >= 1 levels and writes tile.values() finite
  // values. Returns false for a body that docs/FORMAT.md calls damaged.
  virtual bool Decode(const SlabTile& tile, std::span<const uint8_t* const> bodies,
                      float* values) const = 0;

  // Returns the quantizer's raw forms; null when it has none.
  virtual const RawQuantizer* raw_forms() const { return nullptr; }
};

// The table of ops makes a quantizer by one of these. INVALID_ARGUMENT names the argument and its
// limits.
using MakeQuantizer = absl::StatusOr<std::unique_ptr<Quantizer>> (*)(const OpArguments&);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_QUANTIZER_H_
