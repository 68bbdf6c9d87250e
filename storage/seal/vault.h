// Vault: seals and opens the records and bodies of one store. It knows the tenant of each space,
// and asks DataKeys for the tenant's keys.
//
// Whatever carries bytes out of the process uses one: the disk tier today. docs/FORMAT.md ("Sealed
// records") gives every byte; golden files pin them. A store with keys still reads what an earlier
// process wrote in clear.
//
// Errors: UNAVAILABLE when the key is not here, so that the value must stay as it is; DATA_LOSS for
// a value that is damaged or belongs elsewhere; FAILED_PRECONDITION for an unknown version.
// Thread-safe.
#ifndef KVSTOW_STORAGE_SEAL_VAULT_H_
#define KVSTOW_STORAGE_SEAL_VAULT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "storage/record.h"
#include "storage/seal/data_keys.h"
#include "storage/seal/seal.h"

namespace kvstow {

class Vault {
 public:
  // Tests give nonces of their own.
  using NewNonce = AeadNonce (*)();
  explicit Vault(std::shared_ptr<DataKeys> keys, NewNonce new_nonce = &RandomNonce)
      : keys_(std::move(keys)), new_nonce_(new_nonce) {}
  Vault(const Vault&) = delete;
  Vault& operator=(const Vault&) = delete;

  bool seals() const { return keys_->seals(); }
  // Says whose the space is. A space that nobody named belongs to the tenant "".
  void SetTenant(SpaceId space, std::string tenant);
  void ForgetSpace(SpaceId space);

  // Begins to seal a body; nothing when it is to be written in clear.
  absl::StatusOr<std::optional<Sealing>> Seal(const SealPlace& place);
  absl::StatusOr<Opening> Open(const SealPlace& place, const kvstow::Seal& seal);
  // Fails with DATA_LOSS when values in clear cannot be this store's own.
  absl::Status MayBeClear() const;

  // Bytes at rest of a record, sealed or in clear. Serializing a space says whose it is.
  absl::StatusOr<std::string> Serialize(const PageRecord& record);
  absl::StatusOr<std::string> Serialize(const SpaceRecord& record);
  absl::StatusOr<PageRecord> ParsePage(std::span<const uint8_t> bytes);
  absl::StatusOr<SpaceRecord> ParseSpace(std::span<const uint8_t> bytes);

 private:
  std::string TenantOf(SpaceId space);

  const std::shared_ptr<DataKeys> keys_;
  const NewNonce new_nonce_;
  Mutex mu_;
  std::map<SpaceId, std::string> tenants_ KVSTOW_GUARDED_BY(mu_);  // of spaces of others than ""
};

// Returns whether the bytes begin like a sealed record.
bool IsSealedRecord(std::span<const uint8_t> bytes);
// The record of a page, sealed or in clear, without its segments from some index on. Needs no key.
struct TruncatedRecord {
  size_t segments = 0;  // that the page had
  std::string bytes;    // "" = forget the page: nothing is left of it, or it must be whole
};
absl::StatusOr<TruncatedRecord> TruncatePageRecord(std::span<const uint8_t> bytes, size_t keep);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_SEAL_VAULT_H_
