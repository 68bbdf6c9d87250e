// The loops behind transform/byte_planes.h and transform/hadamard.h, which are their manuals. What
// a table is: kernels/page/loops.h.
#ifndef KVSTOW_KERNELS_TRANSFORM_LOOPS_H_
#define KVSTOW_KERNELS_TRANSFORM_LOOPS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/page/page.h"

namespace kvstow {

struct BytePlaneLoops {
  void (*split)(DType dtype, const uint8_t* raw, size_t count, uint8_t* const* planes);
  void (*merge)(DType dtype, const uint8_t* const* planes, size_t count, uint8_t* raw);
  static const BytePlaneLoops& Reference();
  static const BytePlaneLoops& Best();
};

struct HadamardLoops {
  void (*blocks)(size_t count, size_t dim, float* values, const float* before, const float* after);
  static const HadamardLoops& Reference();
  static const HadamardLoops& Best();
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_TRANSFORM_LOOPS_H_
