// The tenants of a store, as numbers, and what each may use of it. Values; thread-safe.
#ifndef KVSTOW_STORAGE_STORE_RESIDENCY_TENANT_SHARE_H_
#define KVSTOW_STORAGE_STORE_RESIDENCY_TENANT_SHARE_H_

#include <cstdint>

#include "storage/segment.h"

namespace kvstow {

// Small and dense: a store keeps a row for each number up to the largest. The names are the
// service's.
using TenantId = uint32_t;
// Of a store whose spaces belong to nobody in particular.
inline constexpr TenantId kOnlyTenant = 0;

// Bytes are encoded bytes, by tier; 0 = no limit, or nothing guaranteed.
struct TenantShare {
  TierBytes limit{};      // it holds at most so many
  TierBytes guarantee{};  // pages of others never push it below so many
  double weight = 1;      // of its part of what is left; positive
  uint64_t pages = 0;     // it has at most so many
  bool operator==(const TenantShare&) const = default;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_RESIDENCY_TENANT_SHARE_H_
