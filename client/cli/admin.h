// Typed calls of kvstow.v1 that only the command line makes.
#ifndef KVSTOW_CLIENT_CLI_ADMIN_H_
#define KVSTOW_CLIENT_CLI_ADMIN_H_

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "client/client.h"

namespace kvstow::cli {

// Makes one unary call. `method` is for example "/kvstow.v1.Admin/Status".
template <typename Response, typename Request>
absl::StatusOr<Response> CallServer(Client& client, absl::string_view method,
                                    const Request& request) {
  KVSTOW_ASSIGN_OR_RETURN(const std::string answer,
                          client.Call(method, request.SerializeAsString()));
  Response response;
  if (!response.ParseFromString(answer)) {
    return absl::InternalError("the server's answer does not parse: is it another version?");
  }
  return response;
}

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_ADMIN_H_
