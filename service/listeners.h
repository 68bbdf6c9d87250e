// Where the server listens: addresses as settings write them, and who can reach them.
//
// Free functions and a value; thread-safe. Errors are INVALID_ARGUMENT.
#ifndef KVSTOW_SERVICE_LISTENERS_H_
#define KVSTOW_SERVICE_LISTENERS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "service/config.h"

namespace kvstow {

// HOST:PORT (HOST may be in brackets) or unix:PATH.
struct Address {
  std::string host;
  int port = 0;
  std::string path;  // of a Unix socket; then host is ""
  bool loopback() const;
};
absl::StatusOr<Address> ParseAddress(absl::string_view text);

// What is to be warned of: a line for each listener that other machines may reach.
std::vector<std::string> WarningsOfListeners(const Config& config);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_LISTENERS_H_
