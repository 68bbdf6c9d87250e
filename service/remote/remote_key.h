// RemoteKey: the key of one tenant in the remote store. It names the tenant's values there, and
// seals them (docs/FORMAT.md, "Sealed remote values").
//
// Names are keyed too: whoever reads the store cannot confirm a guess of a prompt by the name that
// its page would have. Immutable, so thread-safe.
#ifndef KVSTOW_SERVICE_REMOTE_REMOTE_KEY_H_
#define KVSTOW_SERVICE_REMOTE_REMOTE_KEY_H_

#include <cstdint>
#include <memory>

#include "base/aead.h"
#include "service/remote/remote_tag.h"

namespace kvstow {

class RemoteKey {
 public:
  // Makes a new key.
  static std::shared_ptr<const RemoteKey> Random();
  RemoteKey(uint64_t id, SecretKey secret);

  uint64_t id() const { return id_; }  // random: no two keys of a tenant have one
  const SecretKey& secret() const { return secret_; }
  // Returns the tag that stands for `tag` in names.
  RemoteTag Cover(const RemoteTag& tag) const;

 private:
  const uint64_t id_;
  const SecretKey secret_;  // seals values
  const SecretKey names_;   // derived from secret_
};
using RemoteKeyPtr = std::shared_ptr<const RemoteKey>;  // null = the tenant's values are in clear

// What names and seals the values of a space now.
struct RemoteEra {
  uint64_t generation = 0;  // remote_purge.h
  RemoteKeyPtr key;
};

// Where a value lies, and what seals it there.
struct RemotePlace {
  RemoteTag tag;  // as names have it
  RemoteKeyPtr key;
};
// Returns the place of what has this tag.
RemotePlace PlaceAt(const RemoteTag& tag, RemoteKeyPtr key);
// Returns the place of a page.
RemotePlace PlaceOf(const Space& space, const RemoteEra& era, absl::string_view key);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REMOTE_KEY_H_
