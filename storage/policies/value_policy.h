// The project's own policy. It evicts the item whose next bytes have the least
//
//   worth x chance of reuse / bytes
//
// The caller gives the worth (a segment's gain over its bytes). ReuseEstimator learns the chance
// from what happens. It classes items by how often they were used. It classes an item that was used
// once by its position: at the start of a prompt, behind a chain by how often that was used before,
// or at the end of a prompt. Ghosts, of evicted items, let the policy learn of uses that come later
// than the capacity lasts.
//
// An item that others stand on (PolicyItem::parent) does not go before them: leaves go first, also
// where children come before their parent, as they do in a tier that is filled from above. Such an
// item goes only when no leaf may go.
//
// Items of one class, age and worth share a list. The policy orders the lists by value anew every
// quarter of a capacity of use. A victim is the first leaf of the first list that is not empty: a
// look at a bitmap, no scan and no sampling. Every item grows old at most ReuseEstimator::kAges
// times, so every call is O(1) amortized.
#ifndef KVSTOW_STORAGE_POLICIES_VALUE_POLICY_H_
#define KVSTOW_STORAGE_POLICIES_VALUE_POLICY_H_

#include <cstdint>
#include <memory>

#include "storage/policies/eviction_policy.h"

namespace kvstow {

std::unique_ptr<EvictionPolicy> MakeValuePolicy(uint64_t capacity_bytes);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_POLICIES_VALUE_POLICY_H_
