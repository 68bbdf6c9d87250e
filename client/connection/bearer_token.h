// The bearer token of a client: the text that its options give, or what a file holds. The file is
// read again when it changes, so that a token may be replaced while the client runs.
//
// A token goes out as the metadata `authorization: Bearer TOKEN` of every call. Thread-safe.
#ifndef KVSTOW_CLIENT_CONNECTION_BEARER_TOKEN_H_
#define KVSTOW_CLIENT_CONNECTION_BEARER_TOKEN_H_

#include <grpcpp/client_context.h>
#include <sys/stat.h>

#include <string>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "client/client_options.h"

namespace kvstow {

// Fails with INVALID_ARGUMENT when both or a wrong token is given, when the file cannot be read,
// and when the token would go over a network in the clear.
absl::Status CheckToken(const ClientOptions& options);

class BearerToken {
 public:
  // `options` outlive this, and passed CheckToken; else there is no token.
  explicit BearerToken(const ClientOptions& options) : options_(options) {}

  // A file that cannot be read any more leaves the last token in force.
  void AddTo(grpc::ClientContext& context);

 private:
  std::string Current();

  const ClientOptions& options_;
  Mutex mu_;
  struct stat seen_ KVSTOW_GUARDED_BY(mu_) = {};
  std::string from_file_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONNECTION_BEARER_TOKEN_H_
