// Writes and reads fields of a calibration's sections: floats, and matrices in fp16 whose rows have
// a scale each, as HalveRows (calibration_fit.h) makes them.
//
// Free functions, thread-safe. Readers take untrusted bytes. They check the size before they
// allocate more than a row, and return false for fields that are cut off or not finite.
#ifndef KVSTOW_KERNELS_CALIBRATION_CALIBRATION_FIELDS_H_
#define KVSTOW_KERNELS_CALIBRATION_CALIBRATION_FIELDS_H_

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "kernels/page/convert.h"

namespace kvstow {

void PutFloats(std::span<const float> values, ByteWriter& out);
void PutHalves(std::span<const uint16_t> values, ByteWriter& out);

// Replaces the values of `out`. Returns false also for a value below `least`.
bool ReadFloats(ByteReader& in, size_t count, std::vector<float>& out,
                float least = std::numeric_limits<float>::lowest());

// Calls set_row(i, row) with each row of `width` values, its scale applied.
template <typename SetRow>
bool ReadRows(ByteReader& in, std::span<const float> scales, size_t width, const SetRow& set_row) {
  std::vector<float> row(width);
  for (size_t i = 0; i < scales.size(); ++i) {
    const auto halves = in.GetBytes(2 * width);
    if (halves.size() != 2 * width || !LoadHalves(halves.data(), width, row.data())) return false;
    for (float& x : row) x *= scales[i];
    set_row(i, row);
  }
  return true;
}

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CALIBRATION_CALIBRATION_FIELDS_H_
