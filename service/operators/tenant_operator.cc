#include "service/operators/tenant_operator.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kvstow {
namespace {

absl::Status NoTenant(const std::string& tenant) {
  return absl::NotFoundError(
      absl::StrCat("there is no tenant '", tenant, "' here: `kvstow quota` lists them"));
}

}  // namespace

// The table has the tenants of the access file and of all spaces, and those with a quota.
bool TenantOperator::Knows(const std::string& tenant) {
  const std::vector<TenantTable::Row> rows = tenants_.All();
  return std::ranges::find(rows, tenant, &TenantTable::Row::tenant) != rows.end() ||
         (keys_ != nullptr && keys_->Has(tenant));
}

absl::Status TenantOperator::RotateKey(const v1::RotateKeyRequest& in, v1::RotateKeyResponse&) {
  if (keys_ == nullptr && !remote_.seals()) {
    return absl::FailedPreconditionError(
        "what leaves memory is in clear: start kvstowd with --master-key to encrypt it");
  }
  if (!Knows(in.tenant())) return NoTenant(in.tenant());
  absl::Status rotated = keys_ == nullptr ? absl::OkStatus() : keys_->Rotate(in.tenant());
  rotated.Update(remote_.RotateKey(in.tenant()));
  return rotated;
}

absl::Status TenantOperator::DropTenant(const v1::DropTenantRequest& in,
                                        v1::DropTenantResponse& out) {
  const bool known = Knows(in.tenant());
  std::vector<std::shared_ptr<const Space>> spaces;
  absl::Status dropped;
  for (const auto& space : spaces_.All()) {
    if (space->tenant != in.tenant() || !spaces_.Forget(*space)) continue;
    if (!remote_.seals()) remote_.Drop(*space);
    dropped.Update(store_.DropSpace(space->id));
    spaces.push_back(space);
  }
  out.set_spaces(spaces.size());
  if (keys_ != nullptr) dropped.Update(keys_->Drop(in.tenant()));
  calibrations_.DropTenant(in.tenant());
  // Another server may have left a key of the tenant in the remote store.
  dropped.Update(remote_.DropTenant(in.tenant(), spaces));
  if (!known) dropped.Update(NoTenant(in.tenant()));
  return dropped;
}

}  // namespace kvstow
