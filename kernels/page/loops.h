// The loops behind page/convert.h and page/squared_error.h, which are their manuals.
//
// Each room with SIMD code has such a header. A struct is the table of one family: Reference()
// works value by value and defines the bits; Best() has the vectors of the best target that this
// machine runs, and gives the same bits. Tests compare the two on every target
// (tests/kernels/every_target.h). Free functions, thread-safe; the tables are constants.
#ifndef KVSTOW_KERNELS_PAGE_LOOPS_H_
#define KVSTOW_KERNELS_PAGE_LOOPS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/page/page.h"

namespace kvstow {

struct ConvertLoops {
  bool (*load)(DType dtype, const uint8_t* raw, size_t count, float* out);
  void (*store)(DType dtype, const float* values, size_t count, uint8_t* raw);
  void (*stream)(const uint8_t* from, size_t count, uint8_t* to);
  static const ConvertLoops& Reference();
  static const ConvertLoops& Best();
};

struct SquaredErrorLoops {
  // `b` may be null: zeros.
  double (*sum)(const float* a, const float* b, size_t count, double before);
  static const SquaredErrorLoops& Reference();
  static const SquaredErrorLoops& Best();
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_PAGE_LOOPS_H_
