// The file `keys` of a store: the tenants' data keys, wrapped. docs/FORMAT.md ("Keys of a store")
// gives every byte; a golden file pins them.
//
// Values, and free functions over them; thread-safe. Parsing checks magic, digest and version
// first, and fails with DATA_LOSS for damage and with FAILED_PRECONDITION for a version that this
// build does not know.
#ifndef KVSTOW_SERVICE_KEYS_KEY_FILE_H_
#define KVSTOW_SERVICE_KEYS_KEY_FILE_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/aead.h"

namespace kvstow {

// A data key, encrypted by a master key.
struct WrappedKey {
  uint32_t id = 0;  // never 0; random, so that no two stores' keys are taken for each other
  std::string tenant;
  uint64_t master = 0;  // id of the master key
  AeadNonce nonce{};
  AeadTag tag{};
  std::array<uint8_t, kAeadKeyBytes> secret{};
  bool operator==(const WrappedKey&) const = default;
};

struct KeyFile {
  bool reads_clear = false;      // the store was written in clear before it had keys
  std::vector<WrappedKey> keys;  // of each tenant, oldest first
  bool operator==(const KeyFile&) const = default;
};

inline constexpr uint16_t kKeyFileVersion = 1;
inline constexpr size_t kMaxTenantBytes = 1024;

std::string SerializeKeyFile(const KeyFile& file);
absl::StatusOr<KeyFile> ParseKeyFile(std::span<const uint8_t> bytes);

// A wrapped key is bound to its id, its tenant and KeyFile::reads_clear. The nonce is random; tests
// give their own.
WrappedKey Wrap(const SecretKey& master, uint64_t master_id, uint32_t id, const std::string& tenant,
                bool reads_clear, const SecretKey& secret, const AeadNonce& nonce = RandomNonce());
// Fails with DATA_LOSS when the master key is another, or what is bound was changed.
absl::StatusOr<SecretKey> Unwrap(const SecretKey& master, const WrappedKey& key, bool reads_clear);

// Reads the file; NOT_FOUND when there is none.
absl::StatusOr<KeyFile> ReadKeyFile(const std::string& path);
// Puts the file in the place of the old one, with mode 0600. It survives power loss. Then writes
// over the old file's bytes, as far as the file system writes in place.
absl::Status WriteKeyFile(const std::string& path, const KeyFile& file);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_KEYS_KEY_FILE_H_
