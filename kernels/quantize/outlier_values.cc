#include "kernels/quantize/outlier_values.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "kernels/page/half.h"

namespace kvstow {

bool AppendOutliers(std::span<const uint8_t> left_out, const float* values, size_t width,
                    std::string& out) {
  ByteWriter counts, entries;
  for (size_t first = 0; first < left_out.size(); first += width) {
    uint16_t count = 0;
    for (size_t c = 0; c < width; ++c) {
      if (left_out[first + c] == 0) continue;
      const uint16_t half = FloatToHalf(values[first + c]);
      if (!IsFiniteHalf(half)) return false;
      entries.Put(static_cast<uint16_t>(c));
      entries.Put(half);
      ++count;
    }
    counts.Put(count);
  }
  out += counts.bytes();
  out += entries.bytes();
  return true;
}

absl::StatusOr<size_t> ReadOutliers(std::span<const uint8_t> bytes, size_t rows, size_t width,
                                    float* values) {
  ByteReader counts(bytes.first(std::min(bytes.size(), 2 * rows)));
  ByteReader entries(bytes.subspan(std::min(bytes.size(), 2 * rows)));
  const size_t all = entries.remaining();
  for (size_t row = 0; row < rows; ++row, values += width) {
    const auto count = counts.Get<uint16_t>();
    size_t from = 0;  // the least column that may come next
    for (uint16_t i = 0; i < count && entries.ok(); ++i) {
      const size_t column = entries.Get<uint16_t>();
      const auto half = entries.Get<uint16_t>();
      if (!entries.ok() || column < from || column >= width || !IsFiniteHalf(half)) {
        return absl::DataLossError(absl::StrCat("an outlier of row ", row, " is damaged"));
      }
      values[column] = HalfToFloat(half);
      from = column + 1;
    }
  }
  if (!counts.ok() || !entries.ok()) return absl::DataLossError("outliers are cut off");
  return 2 * rows + all - entries.remaining();
}

}  // namespace kvstow
