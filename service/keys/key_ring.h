// KeyRing: the tenants' data keys of a store, in memory and in the store's file `keys`.
//
// A tenant gets its first data key when something of it goes to disk, and a new one by Rotate:
// nothing is written again, and older keys open what they sealed. Drop is the delete: a tenant's
// keys leave memory and the file, and what they sealed is noise from then on.
//
// Every data key is wrapped by a master key. Reload reads the master keys again, unwraps what they
// unwrap, and wraps what is wrapped by another than the first one anew. A data key that no master
// key unwraps is locked: what it sealed stays on disk as it is, and new values take another key.
// Without any master key nothing is sealed, and so nothing goes to disk.
//
// Thread-safe.
#ifndef KVSTOW_SERVICE_KEYS_KEY_RING_H_
#define KVSTOW_SERVICE_KEYS_KEY_RING_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "service/keys/key_file.h"
#include "service/keys/master_key.h"
#include "storage/seal/data_keys.h"

namespace kvstow {

class KeyRing final : public DataKeys {
 public:
  // Opens the keys of the store in `folder`, which is made when missing. Without a master key all
  // data keys are locked until Reload finds one. Sets a damaged file aside as `keys.damaged-N`.
  // Fails when the folder or the file cannot be used.
  static absl::StatusOr<std::shared_ptr<KeyRing>> Open(const std::string& folder,
                                                       std::shared_ptr<MasterKeys> masters);
  // The same, with master keys of its own. Fails as MasterKeys::Open does, too.
  static absl::StatusOr<std::shared_ptr<KeyRing>> Open(const std::string& folder,
                                                       const std::string& source);

  bool seals() const override { return true; }
  bool reads_clear() const override { return reads_clear_; }
  absl::StatusOr<DataKey> KeyToSeal(absl::string_view tenant) override;
  absl::StatusOr<DataKey> KeyToOpen(absl::string_view tenant, uint32_t id) override;

  // Reads the master keys again. After a failure everything stays as it was. Pages whose keys come
  // back are found again after a restart.
  absl::Status Reload();
  // Returns whether the tenant has a key, a locked one too.
  bool Has(absl::string_view tenant);
  // Makes a new data key for what the tenant writes from now on.
  absl::Status Rotate(absl::string_view tenant);
  // Erases all of the tenant's keys, locked ones too. When it fails, the keys are gone from memory,
  // and may be in the file.
  absl::Status Drop(absl::string_view tenant);

  struct Counts {
    uint64_t keys = 0;         // that open
    uint64_t locked = 0;       // that no master key unwraps
    uint64_t master_keys = 0;  // 0 = nothing is sealed
  };
  Counts counts();

 private:
  struct Entry {
    WrappedKey wrapped;
    std::shared_ptr<const SecretKey> secret;  // null = locked
  };

  KeyRing(std::string path, std::shared_ptr<MasterKeys> masters, KeyFile file);
  absl::Status UseMasters();
  void Unlock() KVSTOW_REQUIRES(mu_);
  bool WrapAnew() KVSTOW_REQUIRES(mu_);
  absl::StatusOr<DataKey> AddKey(absl::string_view tenant) KVSTOW_REQUIRES(mu_);
  absl::Status Save() KVSTOW_REQUIRES(mu_);
  void MakeIndex() KVSTOW_REQUIRES(mu_);  // after each change of entries_

  const std::string path_;
  const std::shared_ptr<MasterKeys> source_;
  const bool reads_clear_;
  Mutex mu_;
  std::vector<MasterKey> masters_ KVSTOW_GUARDED_BY(mu_);
  std::vector<Entry> entries_ KVSTOW_GUARDED_BY(mu_);  // of each tenant, oldest first
  // The places in entries_ of all keys by id, and of each tenant's newest key that opens.
  absl::flat_hash_map<uint32_t, size_t> by_id_ KVSTOW_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, size_t> newest_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_KEYS_KEY_RING_H_
