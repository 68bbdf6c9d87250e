// An address to listen on, as settings write it.
//
// A value and free functions; thread-safe. Errors of ParseAddress are INVALID_ARGUMENT.
#ifndef KVSTOW_SERVICE_OPS_ADDRESS_H_
#define KVSTOW_SERVICE_OPS_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/descriptor.h"

namespace kvstow {

// HOST:PORT (HOST may be in brackets) or unix:PATH.
struct Address {
  std::string host;
  int port = 0;
  std::string path;  // of a Unix socket; then host is ""
  bool loopback() const;
};
absl::StatusOr<Address> ParseAddress(absl::string_view text);

// Listens at an address, without blocking. Fails with UNAVAILABLE, which says why `setting` cannot
// have it, and what to do.
absl::StatusOr<Descriptor> ListenAt(absl::string_view setting, const Address& address);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPS_ADDRESS_H_
