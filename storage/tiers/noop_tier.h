// The null objects of storage: a tier that holds nothing and a catalog that remembers nothing. So
// callers never ask whether there is one.
#ifndef KVSTOW_STORAGE_TIERS_NOOP_TIER_H_
#define KVSTOW_STORAGE_TIERS_NOOP_TIER_H_

#include <memory>

#include "storage/catalog.h"
#include "storage/tier.h"

namespace kvstow {

// Write fails with RESOURCE_EXHAUSTED, Read with NOT_FOUND.
std::unique_ptr<Tier> MakeNoopTier();

// Passes bodies on to `disk`, which must outlive it, and forgets everything else: a disk tier under
// this catalog is empty after a restart.
std::unique_ptr<Catalog> MakeNoopCatalog(Tier& disk);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_TIERS_NOOP_TIER_H_
