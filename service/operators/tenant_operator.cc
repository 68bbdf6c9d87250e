#include "service/operators/tenant_operator.h"

#include <memory>
#include <vector>

namespace kvstow {
namespace {

absl::Status InClear() {
  return absl::FailedPreconditionError(
      "what leaves memory is in clear: start kvstowd with --master-key to encrypt it");
}

}  // namespace

absl::Status TenantOperator::RotateKey(const v1::RotateKeyRequest& in, v1::RotateKeyResponse&) {
  if (keys_ == nullptr && !remote_.seals()) return InClear();
  absl::Status rotated = keys_ == nullptr ? absl::OkStatus() : keys_->Rotate(in.tenant());
  rotated.Update(remote_.RotateKey(in.tenant()));
  return rotated;
}

absl::Status TenantOperator::DropTenant(const v1::DropTenantRequest& in,
                                        v1::DropTenantResponse& out) {
  if (keys_ == nullptr && !remote_.seals()) return InClear();
  std::vector<std::shared_ptr<const Space>> spaces;
  absl::Status dropped;
  for (const auto& space : spaces_.All()) {
    if (space->tenant != in.tenant() || !spaces_.Forget(*space)) continue;
    dropped.Update(store_.DropSpace(space->id));
    spaces.push_back(space);
  }
  out.set_spaces(spaces.size());
  if (keys_ != nullptr) dropped.Update(keys_->Drop(in.tenant()));
  calibrations_.DropTenant(in.tenant());
  dropped.Update(remote_.DropTenant(in.tenant(), spaces));
  return dropped;
}

}  // namespace kvstow
