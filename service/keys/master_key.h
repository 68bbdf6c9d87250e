// Master keys: what wraps the tenants' data keys, from outside the store.
//
// A source is `file:PATH`, `env:NAME` or `command:PROGRAM ARGUMENT...`. It gives text: one key a
// line, 32 bytes as 64 hexadecimal digits or as base64; empty lines and lines that begin with #
// mean nothing. The first key wraps; all of them unwrap. So a rotation puts the new key on top, and
// takes the old one out later. The command, a client of a key management service, prints the text;
// it runs without a shell, and is killed after ten seconds.
//
// Free functions; thread-safe. Errors name the source and never a key.
#ifndef KVSTOW_SERVICE_KEYS_MASTER_KEY_H_
#define KVSTOW_SERVICE_KEYS_MASTER_KEY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/aead.h"
#include "base/clock.h"

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

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_KEYS_MASTER_KEY_H_
