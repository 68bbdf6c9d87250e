// MemoryTier: segments in the memory of a device, the host's or a GPU's.
//
// A body is one device buffer. Read takes a reference under a lock and copies outside it, so an
// erase never pulls a buffer from under a reader. On the host device the tier copies nothing: it
// keeps the reference that it was given. The store keeps the budgets: this tier is full only when
// the device is.
#ifndef KVSTOW_STORAGE_TIERS_MEMORY_TIER_H_
#define KVSTOW_STORAGE_TIERS_MEMORY_TIER_H_

#include <memory>

#include "kernels/device/device.h"
#include "storage/tier.h"

namespace kvstow {

// `device` must outlive the tier.
std::unique_ptr<Tier> MakeMemoryTier(Device& device);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_TIERS_MEMORY_TIER_H_
