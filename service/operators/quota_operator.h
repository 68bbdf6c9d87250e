// QuotaOperator: the work of Admin's SetQuota and Tenants.
//
// It takes a request and gives a response and a status, without gRPC. A tenant is one of the access
// file, or one that has had a space here; another name is NOT_FOUND. Thread-safe, but for SetQuota
// of one tenant from two threads: one of them may not see the other's change. Responses are empty
// when they are handed in.
#ifndef KVSTOW_SERVICE_OPERATORS_QUOTA_OPERATOR_H_
#define KVSTOW_SERVICE_OPERATORS_QUOTA_OPERATOR_H_

#include "absl/status/status.h"
#include "kvstow/v1/admin.pb.h"
#include "service/access/tenants.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

class QuotaOperator {
 public:
  // `guaranteed_part`: of a tier's budget that may be guaranteed, its low watermark.
  QuotaOperator(TieredStore& store, TenantTable& tenants, double guaranteed_part)
      : store_(store), tenants_(tenants), guaranteed_part_(guaranteed_part) {}

  absl::Status SetQuota(const v1::SetQuotaRequest& in, v1::SetQuotaResponse& out);  // blocking
  absl::Status Tenants(const v1::TenantsRequest& in, v1::TenantsResponse& out);

 private:
  absl::Status CheckGuarantees(const std::string& tenant, const TenantLimits& limits);

  TieredStore& store_;
  TenantTable& tenants_;
  const double guaranteed_part_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPERATORS_QUOTA_OPERATOR_H_
