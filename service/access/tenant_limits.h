// The share of a server that a tenant may use. The access file gives it; SetQuota changes it.
//
// A value. 0 = no limit, or nothing guaranteed. Bytes are encoded bytes.
#ifndef KVSTOW_SERVICE_ACCESS_TENANT_LIMITS_H_
#define KVSTOW_SERVICE_ACCESS_TENANT_LIMITS_H_

#include <cstdint>

#include "storage/segment.h"

namespace kvstow {

struct TenantLimits {
  TierBytes limit{};      // at most so many, by tier
  TierBytes guarantee{};  // others' pages never push the tenant below this, by tier
  double weight = 1;      // of its share where tenants compete
  uint64_t pages = 0;
  uint64_t spaces = 0;
  uint64_t streams = 0;  // at once
  uint64_t put_bytes_per_second = 0;
  uint64_t get_bytes_per_second = 0;
  uint64_t remote_bytes = 0;  // sent to the remote tier (service/remote/send_budget.h)
  bool operator==(const TenantLimits&) const = default;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_ACCESS_TENANT_LIMITS_H_
