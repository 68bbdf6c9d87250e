// An address to listen on, as settings write it.
//
// A value and a free function; thread-safe. Errors are INVALID_ARGUMENT.
#ifndef KVSTOW_SERVICE_OPS_ADDRESS_H_
#define KVSTOW_SERVICE_OPS_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvstow {

// HOST:PORT (HOST may be in brackets) or unix:PATH.
struct Address {
  std::string host;
  int port = 0;
  std::string path;  // of a Unix socket; then host is ""
  bool loopback() const;
};
absl::StatusOr<Address> ParseAddress(absl::string_view text);

// Returns the UNAVAILABLE that says why `setting` cannot listen at `where`, and what to do. `error`
// is an errno.
absl::Status CannotListen(absl::string_view setting, absl::string_view where, int error);
// Tries to listen at an address and gives it up at once. Returns the errno; 0 = it worked.
int TryToListen(const Address& address);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPS_ADDRESS_H_
