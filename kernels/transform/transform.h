// A transform: an orthonormal change of the basis of a slab's values, in place, before they are
// quantized. Orthonormal, so that an error has the same size on both sides.
//
// A Transform is immutable and knows no page: thread-safe. The same values give the same bits on
// every SIMD target.
#ifndef KVSTOW_KERNELS_TRANSFORM_TRANSFORM_H_
#define KVSTOW_KERNELS_TRANSFORM_TRANSFORM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/op_arguments.h"
#include "kernels/quantize/quantizer.h"

namespace kvstow {

class Transform {
 public:
  virtual ~Transform() = default;
  virtual void Forward(const SlabShape& shape, float* values) const = 0;
  virtual void Inverse(const SlabShape& shape, float* values) const = 0;
};

// How the table of ops makes one.
using MakeTransform = absl::StatusOr<std::unique_ptr<Transform>> (*)(const OpArguments&);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_TRANSFORM_TRANSFORM_H_
