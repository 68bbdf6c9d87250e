#include "service/operators/tenant_operator.h"

namespace kvstow {
namespace {

absl::Status InClear() {
  return absl::FailedPreconditionError(
      "the disk is in clear: start kvstowd with --master-key to encrypt it");
}

}  // namespace

absl::Status TenantOperator::RotateKey(const v1::RotateKeyRequest& in, v1::RotateKeyResponse&) {
  if (keys_ == nullptr) return InClear();
  return keys_->Rotate(in.tenant());
}

absl::Status TenantOperator::DropTenant(const v1::DropTenantRequest& in,
                                        v1::DropTenantResponse& out) {
  if (keys_ == nullptr) return InClear();
  absl::Status dropped;
  for (const auto& space : spaces_.All()) {
    if (space->tenant != in.tenant() || !spaces_.Forget(*space)) continue;
    dropped.Update(store_.DropSpace(space->id));
    out.set_spaces(out.spaces() + 1);
  }
  dropped.Update(keys_->Drop(in.tenant()));
  return dropped;
}

}  // namespace kvstow
