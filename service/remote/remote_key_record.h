// The key record of a tenant: its key in the remote store, wrapped by a master key (docs/FORMAT.md,
// "Key records").
//
// The record is the one value of a tenant whose name anybody can tell who knows the tenant's name.
// Values, and free functions over them; thread-safe. Parsing fails as OpenFramed does.
#ifndef KVSTOW_SERVICE_REMOTE_REMOTE_KEY_RECORD_H_
#define KVSTOW_SERVICE_REMOTE_REMOTE_KEY_RECORD_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/aead.h"
#include "base/shared_bytes.h"
#include "service/keys/master_key.h"
#include "service/remote/remote_key.h"

namespace kvstow {

struct KeyRecord {
  uint64_t id = 0;      // of the key
  uint64_t master = 0;  // id of the master key
  AeadNonce nonce{};
  AeadTag tag{};
  std::array<uint8_t, kAeadKeyBytes> secret{};  // encrypted
  bool operator==(const KeyRecord&) const = default;
};

// A wrapped key is bound to its id and its tenant. The nonce is random; tests give their own.
KeyRecord Wrap(const MasterKey& master, absl::string_view tenant, const RemoteKey& key,
               const AeadNonce& nonce = RandomNonce());
// Fails with UNAVAILABLE when a master key wrapped it that is not among these, and with DATA_LOSS
// when it is not what was wrapped for this tenant.
absl::StatusOr<RemoteKeyPtr> Unwrap(std::span<const MasterKey> masters, absl::string_view tenant,
                                    const KeyRecord& record);

std::vector<SharedBytes> KeyRecordValue(absl::string_view tenant, const KeyRecord& record);
absl::StatusOr<KeyRecord> ParseKeyRecord(absl::string_view tenant, const SharedBytes& value);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REMOTE_KEY_RECORD_H_
