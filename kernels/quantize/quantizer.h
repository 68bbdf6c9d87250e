// A quantizer: the values of a slab to the bodies of its levels, and back from leading levels.
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
#include "kernels/op_arguments.h"
#include "kernels/page.h"
#include "kernels/quantize/body_parts.h"

namespace kvstow {

// K or V of one layer of one page, as floats [tokens, heads, dim], row-major. All are at least 1.
struct SlabShape {
  Part part = Part::kK;
  uint32_t tokens = 0, heads = 0, dim = 0;
  size_t vectors() const { return size_t{tokens} * heads; }
  size_t values() const { return vectors() * dim; }
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
  // Writes all levels; `bodies[l]` has room for LevelBytes(shape, l). `values` are finite. False
  // when they lie beyond what the scales can hold.
  virtual bool Encode(const SlabShape& shape, const float* values,
                      std::span<uint8_t* const> bodies) const = 0;
  // Reads the first bodies.size() >= 1 levels and writes shape.values() finite values. False when
  // the bodies cannot have come from Encode.
  virtual bool Decode(const SlabShape& shape, std::span<const uint8_t* const> bodies,
                      float* values) const = 0;
};

// How the table of ops makes one; INVALID_ARGUMENT names the argument and its limits.
using MakeQuantizer = absl::StatusOr<std::unique_ptr<Quantizer>> (*)(const OpArguments&);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_QUANTIZER_H_
