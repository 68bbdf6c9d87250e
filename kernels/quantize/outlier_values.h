// A side channel of outliers: stores single values of rows that a quantizer leaves out, each with
// its place (the "dense and sparse" split of KVQuant, arXiv 2401.18079: compressed sparse rows).
//
// Bytes for n rows: n counts (uint16), then for each row, in order, its values: column (uint16),
// value (fp16), columns ascending. 32 bits a value and 16 a row.
//
// Free functions, thread-safe.
#ifndef KVSTOW_KERNELS_QUANTIZE_OUTLIER_VALUES_H_
#define KVSTOW_KERNELS_QUANTIZE_OUTLIER_VALUES_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace kvstow {

inline constexpr size_t kMaxOutlierColumns = 65535;

// Appends the values whose entry in `left_out` is not 0; both are [rows, width] with width <=
// kMaxOutlierColumns. False when one of them is beyond fp16.
bool AppendOutliers(std::span<const uint8_t> left_out, const float* values, size_t width,
                    std::string& out);

// Reads the values of `rows` rows at the start of `bytes` and puts them over `values`. Returns the
// number of bytes read. DATA_LOSS when they end too soon, a column is out of range or a value not
// finite.
absl::StatusOr<size_t> ReadOutliers(std::span<const uint8_t> bytes, size_t rows, size_t width,
                                    float* values);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_OUTLIER_VALUES_H_
