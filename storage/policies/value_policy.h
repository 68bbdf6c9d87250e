// The project's own policy: the item goes whose next bytes have the least
//
//   worth x chance of reuse / bytes
//
// where worth is the caller's (a segment's gain over its bytes) and the chance is learned from what
// happens (see ReuseEstimator), for classes by how often an item was used and, for those used once,
// by what they were put behind: at the start of a prompt or behind the end of a chain that was used
// so and so often before. Ghosts, of evicted items, see to it that uses are learned that come later
// than the capacity lasts.
//
// Items that others stand on (PolicyItem::parent) never go before them: leaves first, also where
// children come before their parent, as they do in a tier that is filled from above.
//
// Items of one class, age and worth share a list; lists are ordered by value anew every quarter of
// a capacity of use, and a victim is the first leaf of the first list that is not empty: a look at
// a bitmap, no scan and no sampling. Every item grows old at most ReuseEstimator::kAges times, so
// every call is O(1) amortized.
#ifndef KVSTOW_STORAGE_POLICIES_VALUE_POLICY_H_
#define KVSTOW_STORAGE_POLICIES_VALUE_POLICY_H_

#include <cstdint>
#include <memory>

#include "storage/policies/eviction_policy.h"

namespace kvstow {

std::unique_ptr<EvictionPolicy> MakeValuePolicy(uint64_t capacity_bytes);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_POLICIES_VALUE_POLICY_H_
