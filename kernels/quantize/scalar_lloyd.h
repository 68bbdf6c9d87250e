// Codebooks fitted to data: weighted one-dimensional k-means (Lloyd's iteration).
//
// Free functions, thread-safe, deterministic: ties and sums go in the order of sorted values.
#ifndef KVSTOW_KERNELS_QUANTIZE_SCALAR_LLOYD_H_
#define KVSTOW_KERNELS_QUANTIZE_SCALAR_LLOYD_H_

#include <cstddef>
#include <vector>

namespace kvstow {

struct WeightedValue {
  float value = 0, weight = 1;
};

// `entries` >= 1 values in ascending order that lower the weighted squared distance to the nearest
// of them, from the quantiles on. An entry that no value is nearest to stays where it was. Values
// are finite, weights finite and not negative; without values all entries are 0.
std::vector<float> FitCodebook(std::vector<WeightedValue> values, size_t entries);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_SCALAR_LLOYD_H_
