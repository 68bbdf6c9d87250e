// DataKeys: where storage gets the keys from that seal what leaves the process.
//
// A tenant has one data key or more, each with an id that no other key of the store has. New values
// are sealed with the newest; older keys open what they sealed. NoDataKeys() stands for a store in
// clear. One conformance suite, tests/conformance/data_keys_conformance.h, runs on all
// implementations. Thread-safe.
#ifndef KVSTOW_STORAGE_SEAL_DATA_KEYS_H_
#define KVSTOW_STORAGE_SEAL_DATA_KEYS_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/aead.h"

namespace kvstow {

struct DataKey {
  uint32_t id = 0;  // never 0
  std::shared_ptr<const SecretKey> secret;
};

class DataKeys {
 public:
  virtual ~DataKeys() = default;

  // Returns whether new values are sealed at all.
  virtual bool seals() const = 0;
  // Returns whether values in clear may be the store's own: it was written before it had keys.
  // Elsewhere such a value is damage, whoever put it there.
  virtual bool reads_clear() const = 0;
  // Returns the key for new values of a tenant, and makes the tenant's first one. UNAVAILABLE while
  // there is none, as without a master key: the values must not be written then.
  virtual absl::StatusOr<DataKey> KeyToSeal(absl::string_view tenant) = 0;
  // Returns the tenant's key of this id. UNAVAILABLE when it is not here, or cannot be unwrapped:
  // the values may be readable later, and must stay.
  virtual absl::StatusOr<DataKey> KeyToOpen(absl::string_view tenant, uint32_t id) = 0;
};

// Seals nothing and opens nothing. Lives as long as the process.
std::shared_ptr<DataKeys> NoDataKeys();

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_SEAL_DATA_KEYS_H_
