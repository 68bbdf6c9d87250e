// Opening spaces, the first time and again.
//
// Calls name a space by its name and the fingerprint that OpenSpace answered. A server that has
// restarted may not have the space any longer, or may have another model's under its name: it then
// answers NOT_FOUND or FAILED_PRECONDITION. The client opens the space again from what it
// remembers. The server makes the same space anew, and the call goes on; or another space has the
// name, and OpenSpace says which field differs. A space that this client never opened is opened by
// its name when it is used first.
//
// Free functions; thread-safe.
#ifndef KVSTOW_CLIENT_SPACE_OPENING_H_
#define KVSTOW_CLIENT_SPACE_OPENING_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client_core.h"
#include "client/spaces.h"

namespace kvstow {

// As Client::OpenSpace, whose pages go as `payload` says.
absl::StatusOr<SpaceInfo> OpenSpace(ClientCore& core, const SpaceOptions& options, Payload payload);
// As Client::FindSpace. FAILED_PRECONDITION: the client opened another space of that name.
absl::StatusOr<SpaceInfo> FindSpace(ClientCore& core, absl::string_view name);

// Whether a call failed since the server has not the space that was meant.
bool IsOtherSpace(const absl::Status& status);

// Whether `space` is not the one that the client has open under its name any longer. A client that
// has none takes `space` for it: another client may have opened it. A SpaceInfo that says no
// fingerprint is taken as it is.
bool IsStale(ClientCore& core, const SpaceInfo& space);
inline constexpr char kStaleSpace[] =
    "the space was opened as another one since: use what the last OpenSpace answered";

// Opens a space again, or by its name. On OK, core.payloads knows its fingerprint.
absl::Status OpenAgain(ClientCore& core, const std::string& space);
// The same for a call that must not block: `then` runs on core.executor, after as many attempts as
// `attempts` allows, which must live until then.
void OpenAgain(ClientCore& core, const std::string& space, Attempts& attempts,
               std::function<void(const absl::Status&)> then);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_SPACE_OPENING_H_
