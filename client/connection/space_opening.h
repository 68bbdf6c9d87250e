// Opens spaces, the first time and again.
//
// Calls name a space by its name and the fingerprint that OpenSpace returned. A server that has
// restarted may not have the space any longer, or may have another model's under its name. It then
// answers NOT_FOUND or FAILED_PRECONDITION, and the client opens the space again from its memory.
// Either the server makes the same space anew, and the call goes on; or another space has the name,
// and OpenSpace says which field differs. The client opens a space that it never opened by its
// name, at the first use.
//
// Free functions; thread-safe.
#ifndef KVSTOW_CLIENT_CONNECTION_SPACE_OPENING_H_
#define KVSTOW_CLIENT_CONNECTION_SPACE_OPENING_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/connection/attempts.h"
#include "client/connection/client_core.h"
#include "client/spaces.h"

namespace kvstow {

// Does what Client::OpenSpace says; `payload` says how the pages travel.
absl::StatusOr<SpaceInfo> OpenSpace(ClientCore& core, const SpaceOptions& options, Payload payload);
// Does what Client::FindSpace says. Fails with FAILED_PRECONDITION when the client opened another
// space of that name.
absl::StatusOr<SpaceInfo> FindSpace(ClientCore& core, absl::string_view name);

// Returns whether a call failed because the server does not have the space that the call meant.
bool IsOtherSpace(const absl::Status& status);

// Returns whether the client now has another space open under the name of `space`. A client that
// has none takes `space` for it: another client may have opened it. A SpaceInfo without a
// fingerprint is never stale.
bool IsStale(ClientCore& core, const SpaceInfo& space);
inline constexpr char kStaleSpace[] =
    "the space was opened as another one since: use what the last OpenSpace answered";

// Opens a space again, or by its name. After OK, core.payloads knows its fingerprint.
absl::Status OpenAgain(ClientCore& core, const std::string& space, Time deadline);
// Does the same for a call that must not block. `then` runs on core.executor, after as many
// attempts as `attempts` allows. `attempts` must live until then.
void OpenAgain(ClientCore& core, const std::string& space, Attempts& attempts,
               std::function<void(const absl::Status&)> then);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONNECTION_SPACE_OPENING_H_
