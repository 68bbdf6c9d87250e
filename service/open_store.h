// Opens the base of a server, as its configuration says: the GPU, the tiers and the store.
//
// Free functions. Errors name the setting or the folder and say what to do.
#ifndef KVSTOW_SERVICE_OPEN_STORE_H_
#define KVSTOW_SERVICE_OPEN_STORE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/device/device.h"
#include "kernels/device/device_sharing.h"
#include "service/access/tenants.h"
#include "service/keys/key_ring.h"
#include "service/ops/config.h"
#include "service/remote/remote_store.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

struct OpenedStore {
  std::unique_ptr<Device> gpu;             // null = none
  std::unique_ptr<DeviceSharing> sharing;  // of that GPU's memory; null = none
  std::shared_ptr<MasterKeys> masters;     // of what leaves memory; null = it is in clear
  std::shared_ptr<KeyRing> keys;           // of what is on disk; null = in clear
  std::unique_ptr<TieredStore> store;
  std::unique_ptr<RemoteStore> remote;  // null = none
};
// The observer and the tenants outlive the store. Without tenants all spaces belong to one.
absl::StatusOr<OpenedStore> OpenStore(const Config& config,
                                      StoreObserver& observer = NoStoreObserver(),
                                      TenantTable* tenants = nullptr);

// Opens the remote store of the settings; null = there is none. A store that cannot be reached is
// opened all the same: the log says why. Fails with INVALID_ARGUMENT or FAILED_PRECONDITION for one
// that can never work.
absl::StatusOr<std::unique_ptr<RemoteStore>> OpenRemote(const Config& config);

// Refuses only a recipe that no space could use. Each space checks whether the recipe fits it.
absl::Status CheckRecipe(const std::string& text);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPEN_STORE_H_
