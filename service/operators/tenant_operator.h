// TenantOperator: the work of Admin's RotateKey and DropTenant.
//
// It takes a request and gives a response and a status, without gRPC. Thread-safe. Both write the
// file of keys and ask the remote store, so they block. What one of the two places refuses is done
// in the other all the same. NOT_FOUND: this server has no space and no data key of the tenant, no
// quota, and no line in its access file.
#ifndef KVSTOW_SERVICE_OPERATORS_TENANT_OPERATOR_H_
#define KVSTOW_SERVICE_OPERATORS_TENANT_OPERATOR_H_

#include <string>

#include "absl/status/status.h"
#include "kvstow/v1/admin.pb.h"
#include "service/access/tenants.h"
#include "service/keys/key_ring.h"
#include "service/remote/remote_tier.h"
#include "service/spaces/calibrations.h"
#include "service/spaces/spaces.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

class TenantOperator {
 public:
  // All of them outlive it. `keys` null = the disk is in clear.
  TenantOperator(TieredStore& store, TenantTable& tenants, Spaces& spaces,
                 Calibrations& calibrations, KeyRing* keys, RemoteTier& remote)
      : store_(store),
        tenants_(tenants),
        spaces_(spaces),
        calibrations_(calibrations),
        keys_(keys),
        remote_(remote) {}

  // FAILED_PRECONDITION: what leaves memory is in clear.
  absl::Status RotateKey(const v1::RotateKeyRequest& in, v1::RotateKeyResponse& out);
  // Goes on after an error, and returns the first. Where what leaves memory is in clear there are
  // no keys to erase, and the spaces go as by DropSpace. A tenant that is NOT_FOUND loses its key
  // in the remote store all the same, where another server left one.
  absl::Status DropTenant(const v1::DropTenantRequest& in, v1::DropTenantResponse& out);

 private:
  bool Knows(const std::string& tenant);

  TieredStore& store_;
  TenantTable& tenants_;
  Spaces& spaces_;
  Calibrations& calibrations_;
  KeyRing* const keys_;
  RemoteTier& remote_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPERATORS_TENANT_OPERATOR_H_
