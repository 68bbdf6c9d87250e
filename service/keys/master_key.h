// Master keys: what wraps the tenants' data keys, from outside the store.
//
// A source is `file:PATH`, `env:NAME` or `command:PROGRAM ARGUMENT...`. It gives text: one key a
// line, 32 bytes as 64 hexadecimal digits or as base64; empty lines and lines that begin with #
// mean nothing. The first key wraps; all of them unwrap. So a rotation puts the new key on top, and
// takes the old one out later. The command, a client of a key management service, prints the text;
// it runs without a shell, and is killed after ten seconds.
//
// Thread-safe. Errors name the source and never a key.
#ifndef KVSTOW_SERVICE_KEYS_MASTER_KEY_H_
#define KVSTOW_SERVICE_KEYS_MASTER_KEY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/aead.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace kvstow {

struct MasterKey {
  uint64_t id = 0;  // tells keys apart, and tells nothing of the key
  std::shared_ptr<const SecretKey> secret;
};

inline constexpr Duration kMasterKeyTime = std::chrono::seconds(10);

// INVALID_ARGUMENT when the text is no source.
absl::Status CheckMasterKeySource(absl::string_view source);
// Fails with UNAVAILABLE when the source gives nothing, and with INVALID_ARGUMENT when it gives
// other text. Never returns an empty list.
absl::StatusOr<std::vector<MasterKey>> ReadMasterKeys(const std::string& source,
                                                      Duration time = kMasterKeyTime);
// The text of a source. `what` names it in errors.
absl::StatusOr<std::vector<MasterKey>> ParseMasterKeys(absl::string_view text,
                                                       absl::string_view what);

// The master keys of one source, for all that they wrap.
class MasterKeys {
 public:
  // Reads the source. A source that gives no key is no failure: the log says so, and there is none
  // until Reload finds it. INVALID_ARGUMENT when `source` is none. From the first Open on, the
  // system writes no core dump of this process.
  static absl::StatusOr<std::shared_ptr<MasterKeys>> Open(const std::string& source);

  // Reads the source again. After a failure everything stays as it was.
  absl::Status Reload();
  std::vector<MasterKey> Current() const;  // empty = none could be read yet

 private:
  explicit MasterKeys(std::string source) : source_(std::move(source)) {}

  const std::string source_;
  mutable Mutex mu_;
  std::vector<MasterKey> keys_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_KEYS_MASTER_KEY_H_
