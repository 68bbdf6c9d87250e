// Typed calls of kvstow.v1 that only the command line makes.
#ifndef KVSTOW_CLIENT_CLI_ADMIN_H_
#define KVSTOW_CLIENT_CLI_ADMIN_H_

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/client.h"

namespace kvstow::cli {

// What to do about a call that the server at `address` does not serve.
inline absl::Status NotServed(absl::string_view address, absl::string_view method) {
  if (!absl::StartsWith(method, "/kvstow.v1.Admin/")) {
    return absl::UnimplementedError(
        absl::StrCat(address, " does not know the call ", method, ": is it another version?"));
  }
  return absl::UnimplementedError(absl::StrCat(
      address,
      " serves no operators' calls: name the server's admin-listen by --server, or start kvstowd "
      "with --admin-listen unix:PATH"));
}

// Makes one unary call. `method` is for example "/kvstow.v1.Admin/Status". Fails with
// UNIMPLEMENTED, which says where else to ask, when the server does not serve the call at this
// address.
template <typename Response, typename Request>
absl::StatusOr<Response> CallServer(Client& client, absl::string_view method,
                                    const Request& request) {
  absl::StatusOr<std::string> answer = client.Call(method, request.SerializeAsString());
  if (absl::IsUnimplemented(answer.status())) {
    return NotServed(client.serving().address, method);
  }
  KVSTOW_RETURN_IF_ERROR(answer.status());
  Response response;
  if (!response.ParseFromString(*answer)) {
    return absl::InternalError("the server's answer does not parse: is it another version?");
  }
  return response;
}

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_ADMIN_H_
