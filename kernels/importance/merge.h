// Merging: a dropped token's value is not lost whole. It is averaged into the kept token whose key
// is nearest to its own (CaM, ICML 2024; D2O, arXiv 2406.13035). Keys stay as they are: they carry
// rotary positions, which have no mean.
#ifndef KVSTOW_KERNELS_IMPORTANCE_MERGE_H_
#define KVSTOW_KERNELS_IMPORTANCE_MERGE_H_

#include <cstdint>
#include <span>
#include <vector>

namespace kvstow {

// Merges one head: keys [tokens, dim_k], values [tokens, dim_v]. The value of each dropped token
// (`keep` 0) goes to the kept token of the largest cosine of keys, of equal ones the earliest. A
// kept token's value becomes the mean of its own and of those that came. Nothing happens when none
// is kept. Sums run in F64: a kept token's own value, then the others in token order. Thread-safe.
void MergeValues(std::span<const float> keys, std::span<const uint8_t> keep,
                 std::span<float> values);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_IMPORTANCE_MERGE_H_
